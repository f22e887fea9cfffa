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
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        for (block, values) in values.chunks_mut(4).enumerate() {
            let counter = [(first / 4 + block) as u32, self.number, 0, self.purpose << 24];
            let words = philox4x32(key, counter);
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
}
