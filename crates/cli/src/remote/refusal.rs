//! Why the script of the other side gave up, in sentences.

/// A sentence for what the script gave up at.
pub fn refusal(word: &str, rest: &str, tried: &[(String, String)]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let folders = |word: &str| {
        let all: Vec<_> =
            tried.iter().filter(|(tried, _)| tried == word).map(|(_, at)| at.as_str()).collect();
        all.join(", ")
    };
    match word {
        "other" if rest.starts_with("Linux ") => format!(
            "it is of another architecture ({}; this program is for {}), so that this program cannot be copied there: install caravan {version} there, on its PATH",
            rest.trim_start_matches("Linux "),
            std::env::consts::ARCH
        ),
        "other" => format!("caravan needs Linux, and it runs {rest}"),
        "absent" => {
            let there = match rest {
                "" => "there is no caravan on its PATH".to_owned(),
                other => format!("its PATH has {other}"),
            };
            format!(
                "{there}, and --no-bootstrap keeps this program from being copied: install caravan {version} there, on the PATH that `ssh HOST env` shows"
            )
        }
        "no-copy" => match (folders("no-space"), folders("no-exec")) {
            (full, noexec) if full.is_empty() && noexec.is_empty() => {
                "no folder there can be written to (~/.cache, TMPDIR, /tmp, /var/tmp, HOME)".to_owned()
            }
            (full, noexec) if noexec.is_empty() => {
                format!(
                    "there is no space for a copy of this program in {full}: make some, or set TMPDIR there"
                )
            }
            (full, noexec) => {
                let full = match full.as_str() {
                    "" => String::new(),
                    full => format!(", and there is no space for it in {full}"),
                };
                format!(
                    "a copy of this program cannot run there: {noexec} is mounted noexec{full}. Set TMPDIR there to a folder that is not, or install caravan {version} on its PATH"
                )
            }
        },
        "full" => {
            format!("there is no space for a copy of this program in {rest}: make some, or set TMPDIR there")
        }
        "torn" => "the copy of this program arrived torn".to_owned(),
        "no-run" => format!(
            "a copy of this program does not run there: {rest}. Build caravan {version} there and put it on its PATH"
        ),
        _ => format!("it says `{word} {rest}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_folders_that_were_tried_are_named() {
        let tried = |list: &[(&str, &str)]| -> Vec<_> {
            list.iter().map(|(word, at)| ((*word).to_owned(), (*at).to_owned())).collect()
        };
        let said =
            refusal("no-copy", "", &tried(&[("no-space", "/a"), ("no-exec", "/b"), ("no-space", "/c")]));
        assert!(said.contains("/b is mounted noexec, and there is no space for it in /a, /c."), "{said}");
        let said = refusal("no-copy", "", &tried(&[("no-space", "/a")]));
        assert!(said.contains("no space for a copy of this program in /a:"), "{said}");
    }
}
