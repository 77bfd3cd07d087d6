//! Says what is there of the files that the source offers.

use std::io::Write;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use twox_hash::XxHash3_128;

use super::super::attributes::modified;
use super::super::format::{self, PIECE_BYTES, TreeFrameKind, nonsense};
use super::super::parser::RecordParser;
use super::super::records::{self, OfferedFile, SinkHas};
use super::super::source::answers::OFFER_FILES_MAX;
use super::super::trust::is_own_part;
use super::SinkShared;
use crate::Error;

/// Answers one offer. Whether the source still hears it shows in what it sends.
pub fn answer(shared: &SinkShared<'_>, offer: &[u8], have: &mut impl Write) -> Result<(), Error> {
    let mut parser = RecordParser(offer);
    let number = parser.u64()?;
    let is_update = parser.byte()? != 0;
    let mut answer = number.to_le_bytes().to_vec();
    let mut count = 0;
    while !parser.is_empty() {
        let offered = parser.offered()?;
        count += 1;
        if count > OFFER_FILES_MAX {
            return Err(nonsense("offer"));
        }
        // What cannot be read is not there, for this purpose.
        records::put_had(&mut answer, had(shared, &offered, is_update).unwrap_or(SinkHas::Nothing));
    }
    let _ = have.write_all(&format::frame(TreeFrameKind::Answer, &answer)).and_then(|()| have.flush());
    Ok(())
}

fn had(shared: &SinkShared<'_>, offered: &OfferedFile<'_>, is_update: bool) -> Result<SinkHas, Errno> {
    let (folder, name) = if offered.name.is_empty() {
        shared.targets.file(offered.folder)?
    } else {
        (shared.targets.old_folder(offered.folder)?, offered.name.to_vec())
    };
    if is_update {
        let stat = rustix::fs::statat(&folder, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
        let is_same = stat.is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && u64::try_from(stat.st_size) == Ok(offered.size)
                && modified(&stat) == offered.modified
        });
        if is_same {
            return Ok(SinkHas::Same);
        }
    }
    let part = super::super::part_name(&name);
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&folder, part.as_slice(), flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if !is_own_part(&stat) || bytes == 0 || bytes > offered.size {
        return Ok(SinkHas::Nothing);
    }
    let mut hash = XxHash3_128::new();
    let mut space = vec![0; PIECE_BYTES];
    let mut position = 0;
    while position < bytes {
        // Pairs with the Release where the copy ends.
        if shared.is_over.load(Ordering::Acquire) {
            return Ok(SinkHas::Nothing);
        }
        let wanted = (bytes - position).min(PIECE_BYTES as u64) as usize;
        match rustix::io::pread(&fd, &mut space[..wanted], position) {
            Ok(0) => return Ok(SinkHas::Nothing),
            Ok(count) => {
                hash.write(&space[..count]);
                position += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    let is_kept = shared.keep_part(offered.folder, offered.name, fd);
    Ok(if is_kept { SinkHas::Part { bytes, digest: hash.finish_128() } } else { SinkHas::Nothing })
}
