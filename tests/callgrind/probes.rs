//! A program of probes: functions with names of their own, inside which `tests/callgrind/run` has
//! valgrind count the instructions.
//!
//!     PROGRAM PROBE CALLS
//!     PROGRAM              prints the names of the probes
//!
//! Each probe does its work once. What it needs before and leaves behind is done outside it,
//! uncounted. The programs are examples of the crates whose paths they count, which take this in as a
//! module.

/// Declares the probes of a program, and its `main`: the type that they work on, which has a `new`; then for
/// each a name, what comes before, what is counted, what comes after.
macro_rules! probes {
    ($world:ident; $($name:ident, $before:expr, $counted:expr, $after:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            #[allow(unsafe_code, reason = "callgrind finds the function by its name")]
            extern "Rust" fn $name(world: &mut $world) {
                // Two probes of the same code must not become one function.
                std::hint::black_box(stringify!($name).as_ptr());
                let counted: fn(&mut $world) = $counted;
                counted(world);
            }
        )*
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        fn run(name: &str, calls: u64) -> bool {
            let mut world = $world::new();
            $(
                if name == stringify!($name) {
                    let (before, after): (fn(&mut $world), fn(&mut $world)) = ($before, $after);
                    for _ in 0..calls {
                        before(&mut world);
                        $name(std::hint::black_box(&mut world));
                        after(&mut world);
                    }
                    return true;
                }
            )*
            false
        }

        fn main() {
            let words: Vec<String> = std::env::args().skip(1).collect();
            let calls = words.get(1).and_then(|calls| calls.parse().ok());
            match (words.first(), calls) {
                (None, _) => NAMES.iter().for_each(|name| println!("{name}")),
                (Some(name), Some(calls)) if run(name, calls) => {}
                _ => {
                    eprintln!("callgrind: PROBE CALLS, where PROBE is one of: {}", NAMES.join(" "));
                    std::process::exit(2);
                }
            }
        }
    };
}
