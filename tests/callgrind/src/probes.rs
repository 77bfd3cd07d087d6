//! What declares the probes of a module. Each probe does its work once. What it needs before and leaves behind is done
//! outside it, uncounted.

/// Declares `PROBES`, from the type that they work on, which has a `new`, and the number of calls of each; then for each
/// probe a name, what comes before, what is counted, what comes after.
macro_rules! probes {
    ($world:ident, $calls:literal; $($name:ident, $before:expr, $counted:expr, $after:expr;)*) => {
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
        pub const PROBES: $crate::Probes =
            $crate::Probes { names: &[$(stringify!($name)),*], calls: $calls, run };

        fn run(name: &str) {
            let mut world = $world::new();
            $(
                if name == stringify!($name) {
                    let (before, after): (fn(&mut $world), fn(&mut $world)) = ($before, $after);
                    for _ in 0..$calls {
                        before(&mut world);
                        $name(std::hint::black_box(&mut world));
                        after(&mut world);
                    }
                }
            )*
        }
    };
}
