//! A stage's command that begins with `<` or `>`: a file that is the stage, or a shell's matter.

/// How a command begins.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandStart<'a> {
    /// A command, with or without redirections in front.
    Command,
    /// Nothing but redirections, and a shell has to look at them.
    Alone,
    /// One file to read, with a plain name.
    Read(&'a str),
    /// One file to write, with a plain name.
    Write { path: &'a str, append: bool },
}

/// An error where no file is named.
pub fn start(command: &str) -> Result<CommandStart<'_>, String> {
    let command = command.trim();
    for operator in [">>", ">", "<"] {
        let Some(rest) = command.strip_prefix(operator) else { continue };
        let path = rest.trim_start();
        return match path {
            "" => Err(format!(
                "there is no file behind `{operator}`; name one, such as db2:'{operator}/srv/a.img'"
            )),
            _ if !path.contains(|c| !is_plain(c)) => Ok(match operator {
                "<" => CommandStart::Read(path),
                _ => CommandStart::Write { path, append: operator == ">>" },
            }),
            _ if is_alone(command) => Ok(CommandStart::Alone),
            _ => Ok(CommandStart::Command),
        };
    }
    Ok(CommandStart::Command)
}

/// What every shell takes as it is.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "._/+,:@%=-".contains(c)
}

/// Whether there are only redirections. What is in doubt is none: the shell itself says what is wrong with it.
fn is_alone(command: &str) -> bool {
    let mut rest = command;
    while !rest.is_empty() {
        let Some(behind) = redirection(rest) else { return false };
        rest = behind.trim_start_matches([' ', '\t']);
    }
    true
}

/// What is behind the redirection at the start.
fn redirection(text: &str) -> Option<&str> {
    let text = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let operators = [">>", ">&", ">|", ">", "<&", "<"];
    // Here-documents, and files open both ways, are for a command that knows what to do with them.
    if text.starts_with("<<") || text.starts_with("<>") {
        return None;
    }
    let text = operators.iter().find_map(|operator| text.strip_prefix(operator))?;
    let word = text.trim_start_matches([' ', '\t']);
    let length = word_length(word)?;
    (length > 0).then(|| &word[length..])
}

/// The bytes of the shell's word at the start; `None` if something in it is not closed.
fn word_length(text: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at + c.len_utf8()..];
        at += c.len_utf8()
            + match c {
                ' ' | '\t' | '\n' | '\r' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => return Some(at),
                '\\' => rest.chars().next()?.len_utf8(),
                '\'' => rest.find('\'')? + 1,
                '"' | '`' => closed_length(rest, None, c)?,
                '$' if rest.starts_with('(') => closed_length(rest, Some('('), ')')?,
                '$' if rest.starts_with('{') => closed_length(rest, Some('{'), '}')?,
                _ => 0,
            };
    }
    Some(at)
}

/// The bytes up to and with `close`, where each `open` takes one more of them. Quotes count within
/// parentheses and braces, not within double quotes.
fn closed_length(text: &str, open: Option<char>, close: char) -> Option<usize> {
    let mut depth = usize::from(open.is_none());
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => _ = chars.next(),
            '\'' if open.is_some() => _ = chars.find(|(_, c)| *c == '\'')?,
            _ if c == close => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + c.len_utf8());
                }
            }
            _ if Some(c) == open => depth += 1,
            _ => {}
        }
    }
    None
}
