//! Lookups in tables of fixed sizes by a client that maps nothing, whose one-sided reads are counted.

use std::sync::Arc;

use caravan_store::{FixedProbe, FixedTable, Store, StoreError, StoreOptions, limits};
use caravan_store_server::{ServerOptions, StoreServer, local_address};

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::failed;
use crate::report::Sample;
use crate::scratch::Scratch;
use crate::store::link;
use crate::store::pairs::{KEY_BYTES, VALUE, VALUE_BYTES, key};

/// Tables that are read together, so that none of them decides.
const TABLES: u64 = 30;
/// The pairs of a table that is 90 % full. It has one shard, of buckets with four slots.
const PAIRS: u64 = limits::FIXED_SHARD_BUCKETS_MAX * 4 * 90 / 100;

fn table_failed(why: StoreError) -> Error {
    failed("fixed table", &why)
}

/// Fills tables of a new store, and looks each key up, and as many that are absent. The hash of each store is another
/// one.
pub fn sample(interrupt: &Interrupt) -> Result<Vec<Sample>, Error> {
    let folder = Scratch::create()?;
    let store = Arc::new(Store::embedded(StoreOptions::new(64 << 20)).map_err(table_failed)?);
    let mut tables = Vec::new();
    for first in (0..TABLES).map(|table| table * PAIRS) {
        interrupt.check()?;
        let table = store.transaction(|tx| FixedTable::create(tx, KEY_BYTES, VALUE_BYTES));
        let table = table.map_err(table_failed)?;
        for number in first..first + PAIRS {
            store.transaction(|tx| table.put(tx, &key(number), &VALUE)).map_err(table_failed)?;
        }
        tables.push((first, FixedProbe::new(&table)));
    }
    let mut options = ServerOptions::new("bench", folder.path().join("socket"));
    options.address = Some(local_address(0));
    let server = StoreServer::start(store, options, |_| ()).map_err(|why| failed("fixed table", &why))?;
    let address = server.address().ok_or_else(|| failed("fixed table", &"it is not served over TCP"))?;
    let client = link::connect(address.to_string())?;
    // What the server lends is there from the first answer on.
    client.get(b"none").map_err(table_failed)?;
    let mut reads = [0, 0];
    for (first, probe) in &mut tables {
        interrupt.check()?;
        // Reads the directory of the table.
        client.get_fixed(probe, &key(*first)).map_err(table_failed)?;
        for (reads, (from, value)) in
            reads.iter_mut().zip([(*first, Some(&VALUE[..])), (TABLES * PAIRS + *first, None)])
        {
            let before = client.one_sided_reads();
            for number in from..from + PAIRS {
                let found = client.get_fixed(probe, &key(number)).map_err(table_failed)?;
                if found.as_deref() != value {
                    return Err(failed("fixed table", &"a lookup has found something else"));
                }
            }
            *reads += client.one_sided_reads() - before;
        }
    }
    let [present, absent] = reads.map(|reads| reads as f64 / (TABLES * PAIRS) as f64);
    Ok(vec![Sample::new("reads", present), Sample::new("reads_absent", absent)])
}
