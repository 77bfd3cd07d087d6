//! The hosts of a stage: what is before its colon.

use crate::limits::HOSTS_MAX;

/// Hosts and command. The colons of an address in brackets do not end the hosts.
pub fn split(text: &str) -> Option<(&str, &str)> {
    let mut is_in_brackets = false;
    for (at, c) in text.char_indices() {
        match c {
            '[' => is_in_brackets = true,
            ']' => is_in_brackets = false,
            ':' if !is_in_brackets => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

/// The hosts as ssh takes them; none is this host.
pub fn parse(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let count = text.split(',').count();
    if count > HOSTS_MAX {
        return Err(format!("it has {count} hosts, and a stage takes at most {HOSTS_MAX}"));
    }
    let mut hosts = Vec::new();
    for text in text.split(',') {
        let host = host(text)?;
        if hosts.contains(&host) {
            return Err(format!("it names {host} twice; a host gets the stream once"));
        }
        hosts.push(host);
    }
    Ok(hosts)
}

/// A host as it is written in a stage: an address with colons is in brackets.
pub fn written(host: &str) -> String {
    match host.rsplit_once('@') {
        _ if !host.contains(':') => host.to_owned(),
        Some((user, address)) => format!("{user}@[{address}]"),
        None => format!("[{host}]"),
    }
}

fn host(text: &str) -> Result<String, String> {
    let (user, name) = match text.rsplit_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, text),
    };
    let address = name.strip_prefix('[').map(|rest| rest.strip_suffix(']').unwrap_or(""));
    let bare = address.unwrap_or(name);
    match user {
        Some("") => return Err(format!("a user has no name in `{text}`; leave out the @, or give one")),
        _ if name.is_empty() => {
            return Err(
                "a host has no name; they are separated by single commas, such as a,b:'CMD'".to_owned()
            );
        }
        _ if address.is_some_and(|address| address.is_empty() || address.contains(['[', ']']))
            || address.is_none() && name.contains(['[', ']'])
            || user.is_some_and(|user| user.contains(['[', ']'])) =>
        {
            return Err(format!("`{text}` is no address in brackets; write it like root@[2001:db8::1]"));
        }
        _ if text.starts_with('-') || bare.starts_with('-') => {
            return Err(format!("`{text}` begins with a dash, which ssh would take for an option"));
        }
        _ if text.contains(is_refused) => {
            return Err(format!(
                "`{text}` has a character that no host's name has; quote the command, not the host: db2:'CMD'"
            ));
        }
        _ => {}
    }
    Ok(match user {
        Some(user) => format!("{user}@{bare}"),
        None => bare.to_owned(),
    })
}

/// What ssh itself refuses, because a user's configuration may hand the name to a shell.
fn is_refused(c: char) -> bool {
    c.is_whitespace() || c.is_control() || "'`\"$\\;&<>|(){}*?!#~".contains(c)
}
