//! Asks the sink what it has already.

use rustix::fs::{FileType, Stat};

use super::super::attributes::modified;
use super::super::batch::WalkItem;
use super::super::format::{self, FRAME_BYTES_MAX, TreeFrameKind};
use super::super::records::{self, FILE_RECORD_BYTES, OfferedFile, SinkHas};
use super::outbox::Closed;
use super::place::SourceFile;
use super::reader::BatchReader;

/// Bytes of an offered file beside its path.
const OFFERED_BYTES: usize = FILE_RECORD_BYTES + 256;

impl BatchReader<'_> {
    /// Asks the sink what it has of all these files.
    pub(super) fn offer(&mut self, items: &[WalkItem]) -> Result<Vec<SinkHas>, Closed> {
        let mut all = vec![SinkHas::Nothing; items.len()];
        let offer = self.shared.next_offer();
        let mut frame = Vec::new();
        format::begin(&mut frame);
        frame.extend_from_slice(&offer.to_le_bytes());
        frame.push(1);
        let mut offered = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let place = match item {
                WalkItem::Entry { folder, name, kind: FileType::RegularFile } => {
                    SourceFile { folder: Some(folder), root: folder.root, name, is_followed: false }
                }
                WalkItem::Root { root, path, is_followed } => {
                    SourceFile { folder: None, root: *root, name: path, is_followed: *is_followed }
                }
                _ => continue,
            };
            // What cannot be looked at fails when it is opened.
            let Ok(stat) = place.stat() else { continue };
            let bytes = OFFERED_BYTES + place.spot().path.len();
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && frame.len() + bytes < FRAME_BYTES_MAX
            {
                put_offered(&mut frame, &place, &stat);
                offered.push(index);
            }
        }
        if offered.is_empty() {
            return Ok(all);
        }
        for (index, had) in offered.iter().zip(self.ask(offer, frame)?) {
            all[*index] = had;
        }
        Ok(all)
    }

    /// Asks the sink what it has of this file.
    pub(super) fn offer_one(&mut self, place: &SourceFile<'_>, stat: &Stat) -> Result<SinkHas, Closed> {
        let offer = self.shared.next_offer();
        let mut frame = Vec::new();
        format::begin(&mut frame);
        frame.extend_from_slice(&offer.to_le_bytes());
        frame.push(0);
        put_offered(&mut frame, place, stat);
        Ok(self.ask(offer, frame)?.first().copied().unwrap_or(SinkHas::Nothing))
    }

    fn ask(&self, offer: u64, mut frame: Vec<u8>) -> Result<Vec<SinkHas>, Closed> {
        format::seal(&mut frame, TreeFrameKind::Offer);
        self.shared.answers.expect(offer);
        self.shared.outbox.push_urgent(frame);
        self.shared.answers.wait(offer).ok_or(Closed)
    }
}

fn put_offered(frame: &mut Vec<u8>, place: &SourceFile<'_>, stat: &Stat) {
    let (folder, name) = (place.spot(), place.sent_name());
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    records::put_offered(frame, &OfferedFile { folder, name, size, modified: modified(stat) });
}
