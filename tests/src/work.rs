//! What a test job computes. Compiled into the job and into the harness, which knows by it what an uninterrupted run comes to.

/// One step from the value before: SplitMix64 (Steele, Lea, Flood 2014), a hundred thousand times over.
pub(crate) fn step(before: u64) -> u64 {
    (0..100_000).fold(before, |value: u64, turn: u64| {
        let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(turn);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}
