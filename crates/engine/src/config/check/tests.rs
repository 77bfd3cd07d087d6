use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::app::{App, AppError};
use crate::layout::LinkMode;
use crate::limits::PACKETS_DEFAULT;

/// An app with named ports.
struct Gate;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GateConfig {
    width: u32,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self { width: 1 }
    }
}

impl App for Gate {
    type Config = GateConfig;
    const OUTPUTS: Named = Named::Only(&["open", "shut"]);

    fn check(config: &GateConfig) -> Result<(), AppError> {
        match config.width {
            0 => Err(AppError::new("width = 0: nothing passes")),
            _ => Ok(()),
        }
    }

    fn start(_: GateConfig, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self)
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    registry.add::<crate::apps::Source>("source").add::<crate::apps::Sink>("sink").add::<Gate>("gate");
    registry
}

fn good() -> Config {
    let mut config = Config::new();
    config.app_in("left", "source", "source", serde_json::json!({ "size": 60 }));
    config.app("gate", "gate", serde_json::json!({}));
    config.app("sink", "sink", serde_json::json!(null));
    for link in ["source.a -> gate.input", "gate.open -> sink.a", "gate.shut -> sink.b"] {
        config.link(link).expect("a link");
    }
    config.core("left", 0);
    config
}

#[test]
fn each_worker_is_sure_of_its_packets() {
    let said = check(&good(), &registry(), 2047).expect_err("too few packets");
    let expected =
        "packets_max = 2047: 2 workers need at least 2048, 1024 each. Raise it, or have fewer workers";
    assert_eq!(said, [expected]);
    assert_eq!(check(&good(), &registry(), 2048), Ok(()));
}

#[test]
fn what_a_worker_is_told_fits_into_a_message() {
    let mut config = good();
    config.app("large", "sink", "x".repeat(CONFIG_BYTES_MAX));
    let said = check(&config, &registry(), PACKETS_DEFAULT).expect_err("too long");
    assert!(said.iter().any(|text| text.starts_with("the configurations of all apps take ")), "{said:?}");
}

#[test]
fn what_can_be_carried_out_has_no_mistakes() {
    assert_eq!(check(&good(), &registry(), PACKETS_DEFAULT), Ok(()));
    assert_eq!(check(&Config::new(), &registry(), PACKETS_DEFAULT), Ok(()));
}

type Spoil = fn(&mut Config);

#[test]
fn each_mistake_is_one_sentence() {
    let table: [(Spoil, &str); 16] = [
        (
            |config| _ = config.app("b", "zzz", ()),
            "app `b`: there is no kind `zzz`: kinds are `gate`, `sink` and `source`",
        ),
        (
            |config| _ = config.app("gate", "gate", serde_json::json!({ "width": 0 })),
            "app `gate`: width = 0: nothing passes",
        ),
        (
            |config| _ = config.app("gate", "gate", serde_json::json!({ "widht": 1 })),
            "app `gate`: unknown field `widht`, expected `width`",
        ),
        (
            |config| _ = config.app("a b", "sink", ()),
            "app `a b`: ` ` cannot stand in a name: use letters, digits, `_` and `-`",
        ),
        (|config| _ = config.app("", "sink", ()), "app ``: a name has at least one letter"),
        (
            |config| _ = config.app(&"x".repeat(NAME_BYTES_MAX + 1), "sink", ()),
            "63 bytes are too many: a name has at most 62",
        ),
        (
            |config| _ = config.app_in("lé", "more", "sink", ()),
            "worker `lé`: `é` cannot stand in a name: use letters, digits, `_` and `-`",
        ),
        (
            |config| _ = config.link("sorce.b -> sink.c"),
            "link `sorce.b -> sink.c`: there is no app `sorce`: do you mean `source`?",
        ),
        (
            |config| _ = config.link("gate.ajar -> sink.c"),
            "link `gate.ajar -> sink.c`: `gate` has no output `ajar`: kind `gate` has `open` and `shut`",
        ),
        (
            |config| _ = config.link("source.b -> gate.in"),
            "link `source.b -> gate.in`: `gate` has no input `in`: kind `gate` has `input`",
        ),
        (
            |config| _ = config.link("sink.out -> gate.input2"),
            "link `sink.out -> gate.input2`: `sink` has no outputs: it is of kind `sink`",
        ),
        (
            |config| _ = config.link("source.a -> sink.c"),
            "output `source.a` is linked 2 times, to `gate.input` and `sink.c`: a port has one link",
        ),
        (
            |config| _ = config.link("source.b -> sink.a"),
            "input `sink.a` is linked 2 times, from `gate.open` and `source.b`: a port has one link",
        ),
        (
            |config| _ = config.link("source.o+o -> sink.c"),
            "link `source.o+o -> sink.c`: output `o+o`: `+` cannot stand in a name",
        ),
        (|config| _ = config.core("lefd", 0), "worker `lefd` has no apps: do you mean `left`?"),
        (|config| _ = config.core("left", 100_000), "worker `left`: core = 100000: this process may use 0"),
    ];
    for (spoil, expected) in table {
        let mut config = good();
        spoil(&mut config);
        let said = check(&config, &registry(), PACKETS_DEFAULT).expect_err(expected);
        assert!(said.iter().any(|text| text.contains(expected)), "{expected}: {said:#?}");
        assert!(said.iter().all(|text| text.len() < 300), "{said:#?}");
    }
}

#[test]
fn all_mistakes_are_told_at_once() {
    let mut config = good();
    config.app("b", "sorce", ()).core("nobody", 0);
    config.link("x.a -> y.b").expect("a link");
    let parts: Vec<_> =
        findings(&config, &registry(), PACKETS_DEFAULT).into_iter().map(|finding| finding.part).collect();
    let link = ConfigPart::Link("x.a -> y.b".parse().expect("a link"));
    let expected = [ConfigPart::App("b".into()), link.clone(), link, ConfigPart::Worker("nobody".into())];
    assert_eq!(parts, expected);
}

#[test]
fn counts_have_limits() {
    let mut config = Config::new();
    for worker in 0..=WORKERS_MAX {
        config.app_in(&format!("w{worker}"), &format!("a{worker}"), "sink", ());
    }
    for link in 0..=LINKS_MAX {
        let name = format!("s.o{link} -> t.i{link}").parse().expect("a link");
        config.links.insert(name, LinkMode::Swap);
    }
    config.app("s", "source", ()).app("t", "sink", ());
    let said = check(&config, &registry(), PACKETS_DEFAULT).expect_err("too many");
    assert_eq!(said, ["257 links: an engine has at most 256", "66 workers: an engine has at most 64"]);
    for app in 0..=APPS_MAX {
        config.app(&format!("b{app}"), "sink", ());
    }
    let said = check(&config, &registry(), PACKETS_DEFAULT).expect_err("too many");
    assert_eq!(said[0], format!("{} apps: an engine has at most {APPS_MAX}", config.apps.len()));
}

#[test]
fn a_tee_is_proposed_where_there_is_one() {
    let mut registry = registry();
    registry.add::<crate::apps::Sink>("tee");
    let mut config = good();
    config.link("source.a -> sink.c").expect("a link");
    let said = check(&config, &registry, PACKETS_DEFAULT).expect_err("linked twice");
    assert!(said[0].ends_with("a port has one link. Put a `tee` between"), "{said:?}");
}

#[test]
fn numbers_are_shown_as_ranges() {
    for (numbers, shown) in
        [(&[][..], ""), (&[3], "3"), (&[0, 1], "0-1"), (&[0, 1, 2, 3, 8, 10, 11], "0-3, 8, 10-11")]
    {
        assert_eq!(ranges(numbers), shown);
    }
}

/// Makes configurations of any names, some of which match.
pub(in crate::config) fn any_config() -> impl Strategy<Value = Config> {
    let name = || {
        let odd = ["source", "\u{1b}[2J", "<>&\"'{}|\\ "].map(str::to_owned).to_vec();
        prop_oneof![4 => "[a-e]{0,2}", 1 => "\\PC{0,80}", 1 => any::<String>(), 1 => prop::sample::select(odd)]
    };
    let port = move || (name(), name()).prop_map(|(app, port)| AppPort { app, port });
    let apps = prop::collection::vec((name(), name(), name()), 0..8);
    let links = prop::collection::vec((port(), port()), 0..20);
    let workers = prop::collection::vec((name(), any::<Option<usize>>()), 0..3);
    (apps, links, workers).prop_map(|(apps, links, workers)| {
        let mut config = Config::new();
        for (worker, name, kind) in &apps {
            config.app_in(worker, name, kind, ());
        }
        config.links.extend(links.into_iter().map(|(from, to)| (LinkName { from, to }, LinkMode::Swap)));
        let named = |(name, core)| (name, crate::config::WorkerConfig { core });
        config.workers.extend(workers.into_iter().map(named));
        config
    })
}

proptest! {
    /// Any names give sentences, no panic, and no character that a terminal would obey.
    #[test]
    fn no_names_do_harm(config in any_config()) {
        let said = check(&config, &registry(), PACKETS_DEFAULT);
        for text in said.err().into_iter().flatten() {
            prop_assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
}

#[test]
fn a_file_that_an_app_writes_is_no_other_apps() {
    let folder = std::env::temp_dir().join(format!("caravan-check-files-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/captures/ping.pcap");
    std::fs::copy(capture, folder.join("a")).expect("a capture");
    std::fs::hard_link(folder.join("a"), folder.join("hard")).expect("a link");
    std::os::unix::fs::symlink("a", folder.join("soft")).expect("a link");
    let found = |users: &[(&str, &str, &str)]| {
        let mut config = Config::new();
        for (name, kind, file) in users {
            config.app(name, kind, serde_json::json!({ "file": folder.join(file) }));
        }
        check(&config, &Registry::standard(), PACKETS_DEFAULT).err().unwrap_or_default()
    };
    let text = |file: &str, other: &str, does: &str| {
        let file = folder.join(file).display().to_string();
        vec![format!("app `w`: file = \"{file}\": app `{other}` {does} the same file: write to another one")]
    };
    for name in ["a", "hard", "soft", "../NAME/a"] {
        let name = name.replace("NAME", &folder.file_name().expect("a name").to_string_lossy());
        assert_eq!(
            found(&[("r", "pcap_reader", "a"), ("w", "pcap_writer", &name)]),
            text(&name, "r", "reads")
        );
    }
    assert_eq!(
        found(&[("w", "pcap_writer", "new"), ("x", "pcap_writer", "./new")]),
        text("new", "x", "writes")
    );
    let fine: &[&[_]] = &[
        &[("w", "pcap_writer", "new"), ("x", "pcap_writer", "other")],
        &[("r", "pcap_reader", "a"), ("s", "pcap_reader", "a")],
        &[("w", "pcap_writer", "/dev/null"), ("x", "pcap_writer", "/dev/null")],
    ];
    for users in fine {
        assert_eq!(found(users), [""; 0]);
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}
