//! CARAVAN.ATTACH: the connection becomes a link, over which `caravan_store::ConnectedStore` calls.

use caravan_segment::passing::DoorwayAddress;
use caravan_store::connected::ATTACH_VERSION;

use crate::command::wrong_number;
use crate::error::CommandError;
use crate::links::AttachRequest;
use crate::resp::words::CommandWords;
use crate::session::Session;

/// `CARAVAN.ATTACH version [doorway]`. The answer comes with the link.
pub(crate) fn attach(session: &mut Session, words: CommandWords<'_>) -> Result<(), CommandError> {
    if session.queue.is_some() {
        return Err(CommandError::Said("ERR CARAVAN.ATTACH is not allowed in transactions"));
    }
    if session.is_sealed {
        return Err(CommandError::Said(
            "ERR a link is not encrypted: CARAVAN.ATTACH takes a connection without TLS, on the UNIX socket or on --port",
        ));
    }
    if !words.is(1, ATTACH_VERSION) {
        return Err(CommandError::Told(format!(
            "ERR this server attaches clients of version {ATTACH_VERSION} only: use the same version of Caravan on both sides"
        )));
    }
    let door = match words.len() {
        2 => None,
        3 => Some(
            DoorwayAddress::from_bytes(words.word(2))
                .map_err(|_| CommandError::Said("ERR the address of the doorway is malformed"))?,
        ),
        _ => return Err(wrong_number("caravan.attach")),
    };
    session.attach = Some(AttachRequest { door });
    Ok(())
}
