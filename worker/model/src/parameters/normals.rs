//! First values of parameters, drawn as everything random in a job is: number i of parameter p comes from the stream of
//! words w\[0\], w\[1\], … with w\[4k..4k+4\] = Philox4x32-10 of key = (seed's low word, seed's high word) and counter =
//! (k, p, 0, purpose << 24), in pairs by Box-Muller in 64-bit floating point, rounded to 32 before they are scaled. **The
//! layout is fixed**: every machine has the same bits.

use std::f64::consts::TAU;

use ringtune_random::philox4x32;

/// 2^-32.
const UNIT: f64 = 1.0 / 4_294_967_296.0;

/// Whose numbers they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    /// The job's.
    pub(crate) seed: u64,
    /// Among all that a job draws for: see the worker's `train/draws.rs`.
    pub(crate) purpose: u32,
    /// The parameter's.
    pub(crate) number: u32,
}

impl Draw {
    /// The normals from `first` on, a multiple of 4, times `deviation`.
    pub(crate) fn normals(self, first: usize, deviation: f32, values: &mut [f32]) {
        for (block, values) in values.chunks_mut(4).enumerate() {
            let words = self.words(first / 4 + block);
            for (values, pair) in values.chunks_mut(2).zip(words.chunks_exact(2)) {
                let radius = libm::sqrt(-2.0 * libm::log((f64::from(pair[0]) + 0.5) * UNIT));
                let angle = f64::from(pair[1]) * UNIT * TAU;
                let normals = [radius * libm::cos(angle), radius * libm::sin(angle)];
                for (value, normal) in values.iter_mut().zip(normals) {
                    *value = normal as f32 * deviation;
                }
            }
        }
    }

    /// Numbers from -`bound` to `bound`, each of one word: the middle of what it stands for, in 64-bit floating point, rounded to 32
    /// before it is scaled.
    pub(crate) fn uniforms(self, bound: f32, values: &mut [f32]) {
        for (block, values) in values.chunks_mut(4).enumerate() {
            for (value, word) in values.iter_mut().zip(self.words(block)) {
                *value = (2.0 * (f64::from(word) + 0.5) * UNIT - 1.0) as f32 * bound;
            }
        }
    }

    fn words(self, block: usize) -> [u32; 4] {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        philox4x32(key, [block as u32, self.number, 0, self.purpose << 24])
    }
}
