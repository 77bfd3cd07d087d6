//! Every limit of the store, and the reason for each.

/// The largest number of bytes in a key. Each byte of a key is compared on each read of it, and a key travels in
/// the same object as its value, so a key is kept far below a block.
pub const KEY_BYTES_MAX: usize = 32 << 10;

/// The largest number of bytes in a value: with the longest key and its header it fits in one block of memory.
pub const VALUE_BYTES_MAX: usize = (1 << 20) - (34 << 10);

/// The smallest memory of a store: room for the directory, one part of the table, and some blocks of objects.
pub const MEMORY_BYTES_MIN: u64 = 4 << 20;

/// The largest memory of a store: a place has 40 bits.
pub const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// How often a transaction is tried at the same time as others before it is run alone.
pub const ATTEMPTS_BESIDE_OTHERS: u32 = 16;

/// The largest number of reads and writes of one transaction: it revalidates what it has read, so its cost grows
/// faster than its size.
pub const TRANSACTION_OPERATIONS_MAX: usize = 1 << 20;
