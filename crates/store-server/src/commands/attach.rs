//! CARAVAN.ATTACH: the connection becomes a link, over which `caravan_store::ConnectedStore` calls.

use caravan_cluster::{PartId, StoreInstance};
use caravan_segment::passing::DoorwayAddress;
use caravan_store::connected::ATTACH_VERSION;

use crate::command::wrong_number;
use crate::dialogue::Dialogue;
use crate::error::CommandError;
use crate::links::{AttachCarrier, AttachRequest, ClientRequest};
use crate::member::MemberCall;
use crate::number::integer;
use crate::resp::words::CommandWords;
use crate::slots::NotServed;

/// `CARAVAN.ATTACH version [doorway] [PART number]`. Without a number it is the only part. The answer comes with the link.
pub(crate) fn attach(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    if dialogue.queue.is_some() {
        return Err(CommandError::Said("ERR CARAVAN.ATTACH is not allowed in transactions"));
    }
    if dialogue.is_sealed {
        return Err(CommandError::Said(
            "ERR a link is not encrypted: CARAVAN.ATTACH takes a connection without TLS, on the UNIX socket or on --port",
        ));
    }
    if !words.is(1, ATTACH_VERSION) {
        return Err(CommandError::Told(format!(
            "ERR this server attaches clients of version {ATTACH_VERSION} only: use the same version of Caravan on both sides"
        )));
    }
    let (words_left, part) = match words.len() {
        count if count >= 4 && words.is(count - 2, "PART") => (count - 2, Some(part(words.word(count - 1))?)),
        count => (count, None),
    };
    let carrier = match words_left {
        2 => AttachCarrier::Network,
        3 => AttachCarrier::Mapped(
            DoorwayAddress::from_bytes(words.word(2))
                .map_err(|_| CommandError::Said("ERR the address of the doorway is malformed"))?,
        ),
        _ => return Err(wrong_number("caravan.attach")),
    };
    let is_mapped = matches!(carrier, AttachCarrier::Mapped(_));
    dialogue.parts.part(part).map_err(|not| match (not, &dialogue.parts.cluster) {
        (NotServed::PartMoved { part, .. }, Some(cluster)) if is_mapped => cluster.part_elsewhere_here(part),
        (not, _) => not,
    })?;
    if !dialogue.state.parts.may_answer() {
        return Err(CommandError::Said("TRYAGAIN this server is cut off from the others: try again"));
    }
    if is_mapped && part.is_none() && dialogue.parts.cluster.is_some() {
        // Its reader would not look at the lease.
        return Err(CommandError::Said(
            "ERR to map a part of a store of several servers, name the part when you connect",
        ));
    }
    dialogue.attach = Some(AttachRequest::Client(ClientRequest { carrier, part }));
    Ok(())
}

/// `CARAVAN.MEMBER LINE instance`, `CARAVAN.MEMBER COPY call [doorway]` or `CARAVAN.MEMBER LEAVE name`. The answer comes from
/// the member.
pub(crate) fn member(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    if dialogue.queue.is_some() || dialogue.is_sealed {
        return Err(CommandError::Said(
            "ERR CARAVAN.MEMBER takes a connection without TLS, and no transaction",
        ));
    }
    if dialogue.state.parts.door().is_none() {
        return Err(CommandError::Said("ERR this server is no member of a cluster"));
    }
    let malformed = || {
        CommandError::Said("ERR CARAVAN.MEMBER is malformed: use the same version of Caravan on all members")
    };
    let call = match words.len() {
        3 if words.is(1, "LINE") => {
            let text = std::str::from_utf8(words.word(2)).map_err(|_| malformed())?;
            MemberCall::Line(StoreInstance::try_from(text.to_owned()).map_err(|_| malformed())?)
        }
        3 | 4 if words.is(1, "COPY") => {
            let call = serde_json::from_slice(words.word(2)).map_err(|_| malformed())?;
            let door = (words.len() == 4).then(|| DoorwayAddress::from_bytes(words.word(3)));
            MemberCall::Copy(call, door.transpose().map_err(|_| malformed())?)
        }
        3 if words.is(1, "LEAVE") => {
            MemberCall::Leave(String::from_utf8(words.word(2).to_vec()).map_err(|_| malformed())?)
        }
        _ => return Err(malformed()),
    };
    dialogue.attach = Some(AttachRequest::Member(call));
    Ok(())
}

fn part(word: &[u8]) -> Result<PartId, CommandError> {
    let number = integer(word).and_then(|number| u16::try_from(number).ok());
    number.map(PartId).ok_or(CommandError::Said("ERR the number of a part is between 0 and 65535"))
}
