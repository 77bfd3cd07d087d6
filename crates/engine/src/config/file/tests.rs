use caravan_ring::SpinMode;
use caravan_segment::Pages;
use proptest::prelude::*;

use super::*;
use crate::layout::LinkMode;

const WHOLE: &str = r#"
links = [
    "source.output -> sink.input",
    { link = "sink.back -> source.input", mode = "copy" },
]

[engine]
packets_max = 0x1_0000
headroom = 64
spin = "off"
hugepages = true

[worker.left]
core = 1

[app.source]
kind = "source"
worker = "left"
size = 60
rate = 1.5
when = 2026-01-02
deep = { a = [1, "two", -3], b = false, c = 18446744073709551615 }

[app.sink]
kind = "sink"
"#;

#[test]
fn a_whole_file_is_understood() {
    let file = ConfigFile::parse(WHOLE).expect("a good file");
    let mut config = Config::new();
    let deep = serde_json::json!({ "a": [1, "two", -3], "b": false, "c": u64::MAX });
    let own = serde_json::json!({ "size": 60, "rate": 1.5, "when": "2026-01-02", "deep": deep });
    config.app_in("left", "source", "source", own).app("sink", "sink", serde_json::json!({}));
    config.link("source.output -> sink.input").expect("a link");
    config.link_by("sink.back -> source.input", LinkMode::Copy).expect("a link");
    config.core("left", 1);
    assert_eq!(file.config, config);
    let options = EngineOptions {
        packets_max: 0x1_0000,
        headroom: 64,
        spin: SpinMode::Off,
        pages: Pages::HugeIfOffered,
        ..EngineOptions::default()
    };
    assert_eq!(file.options, options);
}

#[test]
fn nothing_is_a_configuration_too() {
    assert_eq!(ConfigFile::parse("# nothing\n"), Ok(ConfigFile::default()));
}

/// Also the example at the top of this module.
#[test]
fn the_documented_example_is_good() {
    let source = include_str!("../file.rs");
    let example = source.lines().skip_while(|line| *line != "//! ```toml").skip(1);
    let example = example.take_while(|line| *line != "//! ```").map(|line| line.trim_start_matches("//!"));
    let example = example.collect::<Vec<_>>().join("\n");
    let file = ConfigFile::parse(&example).expect("a good file");
    file.check(&Registry::standard()).expect("apps that there are");
    assert_eq!((file.config.apps.len(), file.config.links.len()), (2, 1));
}

#[test]
fn every_example_is_good() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    assert!(files.len() >= 4, "{files:?}");
    for path in files {
        let opened = ConfigFile::open(&path, &Registry::standard());
        assert!(opened.is_ok(), "{}: {opened:#?}", path.display());
    }
}

fn told(text: &str) -> Vec<String> {
    let file = ConfigFile::parse(text).and_then(|file| file.check(&Registry::standard()).map(|()| file));
    file.expect_err(text).iter().map(ToString::to_string).collect()
}

#[test]
fn each_mistake_is_told_with_its_place() {
    for (text, expected) in [
        ("a = 1", "1:1: the file has no key `a`: keys are `links`, `engine`, `worker` and `app`"),
        (
            "\nlinsk = []",
            "2:1: the file has no key `linsk`: do you mean `links`? There are `links`, `engine`, `worker` and `app`",
        ),
        ("links = 3", "1:9: links = ...: it takes a list: [\"app.output -> app.input\"]"),
        ("links = [3]", "1:10: a link is a text in quotes or a table, not an integer"),
        ("links = ['a.b > c.d']", "1:10: `a.b > c.d` is not a link: write it as `app.output -> app.input`"),
        (
            "links = [{ mode = 'swap' }]",
            "1:10: a link without its ends: add link = \"app.output -> app.input\"",
        ),
        (
            "links = [{ link = 'a.b -> c.d', mode = 'move' }]",
            "1:40: mode = 'move': it takes \"swap\" or \"copy\"",
        ),
        (
            "links = [{ link = 'a.b -> c.d', made = 1 }]",
            "1:33: a link has no key `made`: do you mean `mode`?",
        ),
        ("links = ['a.b -> c.d',\n 'a.b->c.d']", "2:2: link `a.b -> c.d` is there twice: see line 1"),
        ("engine = 1", "1:10: engine = 1: it takes a table: [engine]"),
        ("[engine]\npackets_max = 1", "2:15: packets_max = 1: it takes a number from 1024 to 2097152"),
        ("[engine]\nspin = true", "2:8: spin = true: it takes \"auto\", \"on\" or \"off\""),
        ("[engine]\nhugepages = 'yes'", "2:13: hugepages = 'yes': it takes true or false"),
        ("[engine]\nheadroom = -1", "2:12: headroom = -1: it takes a number from 0 to 2104"),
        ("[engine]\nhugepage = true", "2:1: [engine] has no key `hugepage`: do you mean `hugepages`?"),
        ("worker = 'left'", "1:10: worker = 'left': it takes tables: [worker.NAME]"),
        ("[worker]\nleft = 1", "2:8: left = 1: it takes a table: [worker.left]"),
        ("[worker.left]\ncores = 1", "2:1: [worker.left] has no key `cores`: do you mean `core`?"),
        ("[worker.left]\ncore = 1.5", "2:8: core = 1.5: it takes a number from 0"),
        ("", " there are no apps: add a table [app.NAME] for each"),
        ("[worker.left]\n[app.a]\nkind = 'sink'", "1:9: worker `left` has no apps: workers are `main`"),
        ("[app.a]\nworker = 'b'", "1:6: app `a` has no kind: add kind = \"...\""),
        ("[app.a]\nkind = 3", "2:8: kind = 3: it takes a text in quotes"),
        ("[app.a]\nkind = 'sink'\nworker = 3", "3:10: worker = 3: it takes a text in quotes"),
        (
            "[app.a]\nkind = 'sink'\nlinks = ['a.b -> c.d']",
            "3:1: `links` belongs to no app: put it above the first table, at the top of the file",
        ),
        ("[app.a]\nkind = 'source'\nsize = 99999999999999999999", "3:8: this number has more than 64 bits"),
        ("[app.a]\nkind = 'source'\nsize = [nan]", "3:9: this number is not finite, or too large"),
        ("[app.a]\nkind = 'sorce'", "1:6: app `a`: there is no kind `sorce`: do you mean `source`?"),
        ("# ü\n[app.'ü b']\nkind = 'sink'", "2:6: app `ü b`: `ü` cannot stand in a name"),
        (
            "# ü\nlinks = ['ü.a -> b.c']\n[app.q]\nkind = 'sink'",
            "2:10: link `ü.a -> b.c`: there is no app `ü`: apps are `q`",
        ),
        ("[app.a]\nkind = 'sink'\nworker = 'a b'", "1:6: worker `a b`: ` ` cannot stand in a name"),
        ("[app.a]\nkind = 'sink", "2:13: invalid literal string, expected `'`"),
        ("[app.a]\nkind = sink", "2:8: `sink`: string values must be quoted, expected literal string"),
        ("[app.a\nkind = 'sink'", "1:7: unclosed table, expected `]`"),
        ("a = 1\na = 2", "2:1: `a`: duplicate key"),
        ("links = [\n 'a.b -> c.d'\n 'e.f -> g.h'\n]", "3:2: missing comma between array elements"),
        ("ü = 'ü', 3", "1:8: unexpected key or value, expected newline, `#`"),
    ] {
        let said = told(text);
        assert!(said.iter().any(|said| said.starts_with(expected)), "{text}\n{expected}\n{said:#?}");
    }
}

#[test]
fn mistakes_are_told_together_in_the_order_of_the_file() {
    let starts = |text: &str| {
        let said = told(text);
        said.iter().map(|said| said.split(' ').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(starts("a = \nb = 2\nc = @\n"), ["1:5:", "3:5:"]);
    assert_eq!(starts("x = 1\n[app.a]\n[engine]\nspin = 1\ny = 2\n"), ["1:1:", "2:6:", "4:8:", "5:1:"]);
    let text = "links = ['a.x -> b.y', 'b.z -> a.w']\n[app.a]\nkind = 'x'\n[app.b]\nkind = 'sink'\n";
    assert_eq!(starts(text), ["1:24:", "2:6:"]);
}

#[test]
fn only_so_many_mistakes_are_told() {
    let text: String = (0..MISTAKES_MAX + 5).map(|key| format!("k{key} = 1\n")).collect();
    let said = told(&text);
    assert_eq!(said.len(), MISTAKES_MAX + 1);
    assert_eq!(said[MISTAKES_MAX], " and 5 more mistakes");
}

#[test]
fn files_that_cannot_be_read_are_named_with_why() {
    let folder = std::env::temp_dir().join(format!("caravan-config-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("engine.toml");
    let told = |path: &Path| ConfigFile::open_unchecked(path).expect_err("unreadable")[0].to_string();
    assert!(told(&path).starts_with(" cannot read it: No such file"), "{}", told(&path));
    assert!(told(&folder).starts_with(" cannot read it: Is a directory"), "{}", told(&folder));
    assert_eq!(told(Path::new("/dev/zero")), " more than 1048576 bytes: this is no configuration");
    std::fs::write(&path, b"# \xc3\xbc\nx = '\xff'").expect("written");
    assert_eq!(told(&path), "2:6: this is not UTF-8: write the file in UTF-8");
    std::fs::write(&path, WHOLE).expect("written");
    assert!(ConfigFile::open_unchecked(&path).is_ok());
    assert!(ConfigFile::open(&path, &Registry::standard()).is_err());
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Pieces of files, so that many files are nearly valid.
fn piece() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "links = [",
        "]",
        "\"a.b -> c.d\"",
        ",",
        "{ link = ",
        "mode = 'copy'",
        "}",
        "\n",
        "[app.a]",
        "[app.a.b]",
        "[[app]]",
        "[engine]",
        "[worker.a]",
        "core = ",
        "0",
        "-1",
        "1e999",
        "kind = 'sink'",
        "kind.x = 1",
        "= ",
        "'",
        "\"",
        "'''",
        "\u{feff}",
        "\r\n",
        "#",
        "size = [[[[",
        "spin = ",
        "packets_max = 0x",
        "\\u0000",
    ]);
    prop_oneof![4 => known.prop_map(str::to_owned), 1 => "\\PC{0,8}", 1 => any::<String>()]
}

proptest! {
    /// Any text gives a configuration, or mistakes at places that are in it, never a panic, and no character
    /// that a terminal would obey.
    #[test]
    fn no_text_does_harm(pieces in prop::collection::vec(piece(), 0..30)) {
        let text = pieces.concat();
        let registry = Registry::standard();
        let file = ConfigFile::parse(&text).and_then(|file| file.check(&registry).map(|()| file));
        if let Err(mistakes) = file {
            prop_assert!(!mistakes.is_empty());
            for mistake in mistakes {
                prop_assert!(!mistake.to_string().contains(char::is_control), "{mistake:?}");
                if let Some(FilePosition { line, column }) = mistake.place {
                    let of_line = text.split('\n').nth(line - 1);
                    prop_assert!(of_line.is_some_and(|of_line| column <= of_line.chars().count() + 1), "{mistake:?}");
                }
            }
        }
    }

    /// A configuration that is written as a file and read again is unchanged.
    #[test]
    fn what_is_written_is_read(names in prop::collection::btree_set("[a-z]{1,6}", 2..6), sizes in prop::collection::vec(any::<i64>(), 6)) {
        let mut config = Config::new();
        let mut text = String::from("links = [\n");
        let names: Vec<_> = names.iter().collect();
        for pair in names.windows(2) {
            let link = format!("{}.out -> {}.in", pair[0], pair[1]);
            text.push_str(&format!("  \"{link}\",\n"));
            config.link(&link).expect("a link");
        }
        text.push_str("]\n");
        for (name, size) in names.iter().zip(&sizes) {
            text.push_str(&format!("[app.{name}]\nkind = \"k\"\nworker = \"w{name}\"\nsize = {size}\n"));
            config.app_in(&format!("w{name}"), name, "k", serde_json::json!({ "size": size }));
        }
        prop_assert_eq!(ConfigFile::parse(&text).expect("a good file").config, config);
    }
}
