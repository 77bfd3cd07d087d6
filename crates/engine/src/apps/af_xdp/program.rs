//! The XDP program that hands frames of a queue to a socket, and the map that it looks the socket up
//! in: bpf(2). `unsafe`: that call.
//!
//! Program, map and their hold on the interface are descriptors: all of it goes with the process.

use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use super::XdpMode;
use crate::device::{DeviceFailure, failed};

/// Queues that an interface can have here.
pub(super) const QUEUES_MAX: u32 = 4096;

// `linux/bpf.h`.
const MAP_CREATE: u32 = 0;
const MAP_UPDATE: u32 = 2;
const PROGRAM_LOAD: u32 = 5;
const LINK_CREATE: u32 = 28;
const MAP_OF_SOCKETS: u32 = 17;
const PROGRAM_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const XDP_PASS: i32 = 2;
const REDIRECT_MAP: i32 = 51;
// `linux/if_link.h`.
const GENERIC_MODE: u32 = 1 << 1;
const NATIVE_MODE: u32 = 1 << 2;

/// The program calls no GPL-only helper, so the kernel takes any licence.
const LICENCE: &std::ffi::CStr = c"Apache-2.0";

pub(super) const MAP: &str = "bpf BPF_MAP_CREATE";
pub(super) const LOAD: &str = "bpf BPF_PROG_LOAD";
pub(super) const ATTACH: &str = "bpf BPF_LINK_CREATE";

/// The attached program. When it is dropped, frames go to the host again.
#[derive(Debug)]
pub(super) struct XdpProgram {
    _link: OwnedFd,
}

/// Hands the frames of a queue of an interface to a socket.
pub(super) fn attach(
    socket: BorrowedFd<'_>,
    interface: u32,
    queue: u32,
    mode: XdpMode,
) -> Result<XdpProgram, DeviceFailure> {
    let map = MapCreate { kind: MAP_OF_SOCKETS, key_bytes: 4, value_bytes: 4, entries: queue + 1 };
    // SAFETY: it holds no address.
    let map = unsafe { bpf_open(MAP_CREATE, &map) }.map_err(failed(MAP))?;

    let socket = socket.as_raw_fd();
    let update = MapUpdate {
        map: map.as_raw_fd(),
        _unused: 0,
        key: ptr::from_ref(&queue) as u64,
        value: ptr::from_ref(&socket) as u64,
        flags: 0,
    };
    // SAFETY: the kernel reads the 4 bytes of the key and the 4 of the value, as the map was made.
    unsafe { bpf(MAP_UPDATE, &update) }.map_err(failed("bpf BPF_MAP_UPDATE_ELEM"))?;

    let instructions = instructions(map.as_raw_fd());
    let load = ProgramLoad {
        kind: PROGRAM_XDP,
        instructions: instructions.len() as u32,
        instructions_at: instructions.as_ptr() as u64,
        licence_at: LICENCE.as_ptr() as u64,
        log: [0; 2],
        log_at: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"caravan\0\0\0\0\0\0\0\0\0",
        interface: 0,
        attach: ATTACH_XDP,
    };
    // SAFETY: the kernel reads that many instructions, and the licence to its end; both outlive the
    // call. There is no log that it would write.
    let program = unsafe { bpf_open(PROGRAM_LOAD, &load) }.map_err(failed(LOAD))?;

    let flags = match mode {
        XdpMode::Auto => 0,
        XdpMode::Native => NATIVE_MODE,
        XdpMode::Generic => GENERIC_MODE,
    };
    let link = LinkCreate { program: program.as_raw_fd(), interface, attach: ATTACH_XDP, flags };
    // SAFETY: it holds no address.
    let link = unsafe { bpf_open(LINK_CREATE, &link) }.map_err(failed(ATTACH))?;
    Ok(XdpProgram { _link: link })
}

/// `struct bpf_insn`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    const fn new(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        // Two bit fields, which compilers lay out by the machine's endianness.
        let little = cfg!(target_endian = "little");
        let registers = if little { source << 4 | destination } else { destination << 4 | source };
        Self { code, registers, offset, immediate }
    }
}

/// `return bpf_redirect_map(&map, context->rx_queue_index, XDP_PASS)`: the frame goes to the socket
/// that the map has for its queue, and to the host if it has none.
///
/// The instruction set is Documentation/bpf/standardization/instruction-set.rst; r1 holds the
/// program's argument, r1 to r5 hold a helper's arguments, r0 what it and the program return.
const fn instructions(map: i32) -> [Instruction; 6] {
    [
        // LDX | MEM | W: r2 = *(u32 *)(r1 + 16), the field rx_queue_index of struct xdp_md.
        Instruction::new(0x61, 2, 1, 16, 0),
        // LD | IMM | DW, of two instructions' length: r1 = the map of this descriptor (source 1,
        // BPF_PSEUDO_MAP_FD).
        Instruction::new(0x18, 1, 1, 0, map),
        Instruction::new(0, 0, 0, 0, 0),
        // ALU64 | MOV | K: r3 = XDP_PASS, the flags, whose low bits are what is returned without a
        // socket (Linux 5.3).
        Instruction::new(0xb7, 3, 0, 0, XDP_PASS),
        // JMP | CALL: r0 = bpf_redirect_map(r1, r2, r3).
        Instruction::new(0x85, 0, 0, 0, REDIRECT_MAP),
        // JMP | EXIT: return r0.
        Instruction::new(0x95, 0, 0, 0, 0),
    ]
}

// Parts of `union bpf_attr`, by command, as far as they are used.

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
}

#[repr(C)]
struct MapUpdate {
    map: i32,
    _unused: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instructions: u32,
    instructions_at: u64,
    licence_at: u64,
    log: [u32; 2],
    log_at: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

#[repr(C)]
struct LinkCreate {
    program: i32,
    interface: u32,
    attach: u32,
    flags: u32,
}

/// bpf(2).
///
/// # Safety
/// `attributes` are those of `command`, without padding, and the addresses in them are of what the
/// command takes there.
unsafe fn bpf<A>(command: u32, attributes: &A) -> Result<i32, Errno> {
    let (start, bytes) = (ptr::from_ref(attributes), mem::size_of::<A>());
    // SAFETY: the kernel reads `bytes` bytes from `start`, and what the caller vouches for.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, start, bytes) };
    if result < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(result as i32)
}

/// bpf(2) with a command that returns a new descriptor.
///
/// # Safety
/// As for [`bpf`].
unsafe fn bpf_open<A>(command: u32, attributes: &A) -> Result<OwnedFd, Errno> {
    // SAFETY: as the caller vouches.
    let descriptor = unsafe { bpf(command, attributes)? };
    // SAFETY: the descriptor is new (and close-on-exec, as the kernel makes them), and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes, as the instruction set lays them out.
    #[cfg(target_endian = "little")]
    #[test]
    fn the_program_is_what_its_description_says() {
        let bytes = instructions(0x1234).map(|i| {
            let (offset, immediate) = (i.offset.to_le_bytes(), i.immediate.to_le_bytes());
            [
                i.code,
                i.registers,
                offset[0],
                offset[1],
                immediate[0],
                immediate[1],
                immediate[2],
                immediate[3],
            ]
        });
        let expected = [
            [0x61, 0x12, 0x10, 0, 0, 0, 0, 0],
            [0x18, 0x11, 0, 0, 0x34, 0x12, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0xb7, 0x03, 0, 0, 2, 0, 0, 0],
            [0x85, 0, 0, 0, 51, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected);
    }
}
