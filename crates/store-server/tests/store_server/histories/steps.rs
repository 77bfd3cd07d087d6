//! A step of a transaction as a command of the Redis protocol, and as reads and writes of `ClusterStore`.

use caravan_store::{ClusterTransaction, StoreError};
use caravan_store_server::StoreAnswer;

use super::history::{Step, StepKind};

/// Does a step as the command of that name does it.
pub fn step_in(tx: &mut ClusterTransaction<'_>, step: &mut Step) -> Result<(), StoreError> {
    let key = step.key.as_bytes();
    let before = tx.get(key)?;
    let value = step.value.clone().unwrap_or_default();
    step.reply = match step.kind {
        StepKind::Get => before.map(text),
        StepKind::Set => {
            tx.put(key, value.as_bytes())?;
            None
        }
        StepKind::GetSet => {
            tx.put(key, value.as_bytes())?;
            before.map(text)
        }
        StepKind::Append => {
            let all = before.map(text).unwrap_or_default() + &value;
            tx.put(key, all.as_bytes())?;
            Some(all.len().to_string())
        }
        StepKind::Incr => {
            let number: u64 = before.map(text).map_or(0, |number| number.parse().expect("a number"));
            tx.put(key, (number + 1).to_string().as_bytes())?;
            Some((number + 1).to_string())
        }
        StepKind::Del => {
            tx.delete(key)?;
            Some(u64::from(before.is_some()).to_string())
        }
        StepKind::Flush => None,
    };
    Ok(())
}

/// Returns a step as a command.
pub fn words(step: &Step) -> Vec<Vec<u8>> {
    let name = match step.kind {
        StepKind::Get => "GET",
        StepKind::Set => "SET",
        StepKind::GetSet => "GETSET",
        StepKind::Append => "APPEND",
        StepKind::Incr => "INCR",
        StepKind::Del => "DEL",
        StepKind::Flush => return vec![b"FLUSHALL".to_vec()],
    };
    let value = step.value.iter().map(|value| value.clone().into_bytes());
    [name.as_bytes().to_vec(), step.key.clone().into_bytes()].into_iter().chain(value).collect()
}

pub fn text(bytes: Vec<u8>) -> String {
    text_of(&bytes)
}

pub fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns what an answer says, as a step notes it.
pub fn reply(answer: StoreAnswer) -> Result<Option<String>, String> {
    match answer {
        StoreAnswer::Null => Ok(None),
        StoreAnswer::Bulk(bytes) | StoreAnswer::Simple(bytes) => Ok(Some(text(bytes))),
        StoreAnswer::Integer(number) => Ok(Some(number.to_string())),
        other => Err(format!("the server answered {other:?}")),
    }
}

/// Returns the answers of several commands, nothing if there is no answer.
pub fn answers(answer: Option<StoreAnswer>, count: usize) -> Result<Option<Vec<StoreAnswer>>, String> {
    match answer {
        None => Ok(None),
        Some(StoreAnswer::Array(answers)) if answers.len() == count => Ok(Some(answers)),
        other => Err(format!("the server answered {other:?} to {count} commands")),
    }
}
