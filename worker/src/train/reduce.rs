//! What the ring carries for a microbatch, and how a step's microbatches become one gradient.

/// What one microbatch of a step yielded.
#[derive(Clone, Debug, PartialEq)]
pub struct MicrobatchResult {
    /// Its mean squared error.
    pub loss: f32,
    /// d loss / d rows, flat: num_vectors x text_width.
    pub gradient: Vec<f32>,
    /// Seconds that its forward and backward pass took.
    pub compute_seconds: f32,
}

/// What a whole step yielded.
#[derive(Clone, Debug, PartialEq)]
pub struct ReducedStep {
    /// Mean of the microbatches' losses.
    pub loss: f32,
    /// Mean of the microbatches' gradients.
    pub gradient: Vec<f32>,
    /// Whether every loss and every element of every gradient is finite.
    pub finite: bool,
    /// Seconds of all microbatches together.
    pub compute_seconds: f64,
}

/// Floats that travel with the gradient: the loss and the seconds.
const EXTRAS: usize = 2;

/// Length of a microbatch's row on the ring, for a gradient of `gradient_length` floats.
pub fn row_length(gradient_length: usize) -> usize {
    gradient_length + EXTRAS
}

impl MicrobatchResult {
    /// The microbatch's row on the ring: the gradient, the loss, the seconds. A row that is not finite travels as it
    /// is, so every rank sees it.
    pub fn into_row(self) -> Vec<f32> {
        let mut row = self.gradient;
        row.extend([self.loss, self.compute_seconds]);
        row
    }
}

/// Adds up all M rows of a step in microbatch order and divides by M, in fp32: the same bits on every rank, whoever
/// computed which row. `None` if there is no row, or one is shorter than [`row_length`]`(gradient_length)`.
pub fn reduce_rows<R: AsRef<[f32]>>(rows: &[R], gradient_length: usize) -> Option<ReducedStep> {
    if rows.is_empty() || rows.iter().any(|row| row.as_ref().len() < row_length(gradient_length)) {
        return None;
    }
    let learned = |row: &R| row.as_ref()[..gradient_length + 1].to_vec();
    let finite = rows.iter().all(|row| learned(row).iter().all(|value| value.is_finite()));
    let mut gradient = ordered_mean(rows.iter().map(learned))?;
    let loss = gradient.pop()?;
    let compute_seconds = rows.iter().map(|row| f64::from(row.as_ref()[gradient_length + 1])).sum();
    Some(ReducedStep { loss, gradient, finite, compute_seconds })
}

/// The mean of equally long rows, added up in their order and divided once, in fp32. `None` of no rows.
pub fn ordered_mean<R: AsRef<[f32]>>(rows: impl IntoIterator<Item = R>) -> Option<Vec<f32>> {
    let mut rows = rows.into_iter();
    let mut sum = rows.next()?.as_ref().to_vec();
    let mut count = 1u32;
    for row in rows {
        sum.iter_mut().zip(row.as_ref()).for_each(|(sum, value)| *sum += value);
        count += 1;
    }
    sum.iter_mut().for_each(|sum| *sum /= count as f32);
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(gradient: &[f32], loss: f32) -> Vec<f32> {
        MicrobatchResult { loss, gradient: gradient.to_vec(), compute_seconds: 0.25 }.into_row()
    }

    #[test]
    fn means_of_gradients_and_losses() {
        let reduced = reduce_rows(&[row(&[1.0, -2.0], 3.0), row(&[3.0, 4.0], 5.0)], 2).unwrap();
        let expected =
            ReducedStep { loss: 4.0, gradient: vec![2.0, 1.0], finite: true, compute_seconds: 0.5 };
        assert_eq!(reduced, expected);
    }

    #[test]
    fn the_order_of_addition_is_the_order_of_the_rows() {
        // In fp32 (1 + 1e8) - 1e8 is 0, and 1 + (1e8 - 1e8) is 1.
        assert_eq!(ordered_mean([[1.0f32], [1e8], [-1e8]]), Some(vec![0.0]));
        assert_eq!(ordered_mean([[1e8f32], [-1e8], [1.0]]), Some(vec![1.0 / 3.0]));
    }

    #[test]
    fn one_bad_number_in_one_microbatch_spoils_the_step() {
        let good = row(&[1.0, 2.0], 3.0);
        for bad in [row(&[f32::NAN, 0.0], 1.0), row(&[0.0, f32::INFINITY], 1.0), row(&[0.0, 0.0], f32::NAN)] {
            assert!(!reduce_rows(&[good.clone(), bad], 2).unwrap().finite);
        }
        let clock_gone_mad =
            MicrobatchResult { loss: 1.0, gradient: vec![0.0; 2], compute_seconds: f32::NAN };
        assert!(reduce_rows(&[clock_gone_mad.into_row()], 2).unwrap().finite);
    }

    #[test]
    fn no_rows_and_short_rows_have_no_mean() {
        assert_eq!(reduce_rows::<Vec<f32>>(&[], 2), None);
        assert_eq!(reduce_rows(&[vec![1.0; 3]], 2), None);
    }
}
