//! The form in which a register holds a configuration: a line with a checksum, and the JSON.
//!
//! ```text
//! caravan-configuration 1 WRITING CHECKSUM BYTES
//! { ... }
//! ```
//!
//! The checksum is the XXH3-64 of what follows the first line, whose length is `BYTES`. WRITING is a number of the register:
//! of a file the revision, in etcd a random number by which a writer knows its own writing again.

use crate::configuration::Configuration;
use crate::error::ClusterError;
use crate::limits;

const WORD: &str = "caravan-configuration";
const FORM: &str = "1";

/// The most bytes of an envelope.
pub(super) const BYTES_MAX: usize = limits::CONFIGURATION_BYTES_MAX + 128;

/// Returns the envelope of a configuration.
pub(super) fn write(writing: u64, configuration: &Configuration) -> Result<String, ClusterError> {
    configuration.check()?;
    let mut json = configuration.to_json();
    json.push('\n');
    if json.len() > limits::CONFIGURATION_BYTES_MAX {
        return Err(ClusterError::Options(format!(
            "the configuration would have more than {} bytes: have fewer parts",
            limits::CONFIGURATION_BYTES_MAX
        )));
    }
    Ok(format!("{WORD} {FORM} {writing} {:016x} {}\n{json}", checksum(&json), json.len()))
}

/// Reads an envelope: the writing and the configuration.
pub(super) fn read(text: &[u8]) -> Result<(u64, Configuration), ClusterError> {
    let damaged = |reason: &str| ClusterError::Damaged(reason.to_owned());
    let text = std::str::from_utf8(text).map_err(|_| damaged("it is not a configuration of Caravan"))?;
    let (head, json) = text.split_once('\n').unwrap_or((text, ""));
    let [word, form, writing, sum, bytes] = head.split(' ').collect::<Vec<_>>()[..] else {
        return Err(damaged("it is not a configuration of Caravan"));
    };
    if word != WORD {
        return Err(damaged("it is not a configuration of Caravan"));
    }
    if form != FORM {
        let found = form.parse().map_err(|_| damaged("its first line is damaged"))?;
        return Err(ClusterError::Form { found, known: 1 });
    }
    let (Ok(writing), Ok(bytes), Ok(sum)) =
        (writing.parse::<u64>(), bytes.parse::<usize>(), u64::from_str_radix(sum, 16))
    else {
        return Err(damaged("its first line is damaged"));
    };
    if json.len() != bytes {
        let reason = format!("it has {} of {bytes} bytes: it was not written to its end", json.len());
        return Err(ClusterError::Damaged(reason));
    }
    if checksum(json) != sum {
        return Err(damaged("its checksum is wrong: it was changed by something other than Caravan"));
    }
    Ok((writing, Configuration::from_json(json)?))
}

fn checksum(text: &str) -> u64 {
    twox_hash::XxHash3_64::oneshot(text.as_bytes())
}
