//! The slice of `cargo xtask soak path` that every test run takes: four seeds, always the same.

use sela_tests::soak;

fn run(seed: u64) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root: soak of seed {seed}");
        assert!(
            std::env::var_os("CI").is_none(),
            "seed {seed} was skipped where nothing may be"
        );
        return;
    }
    match soak::run(seed) {
        Ok(told) => println!("{told}"),
        Err(error) => panic!("`cargo xtask soak path --seed {seed} --runs 1` shows it again: {error:#}"),
    }
}

macro_rules! seeds {
    ($($name:ident: $seed:literal),* $(,)?) => {
        $(#[test]
        fn $name() {
            run($seed);
        })*
    };
}

seeds! {
    the_path_lives_through_the_trouble_of_seed_one: 1,
    the_path_lives_through_the_trouble_of_seed_two: 2,
    the_path_lives_through_the_trouble_of_seed_three: 3,
    the_path_lives_through_the_trouble_of_seed_four: 4,
}
