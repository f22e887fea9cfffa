//! Steps that a rank did not see to their end, as those that did tell them to it: rows of numbers in the ring.
//!
//! A rank may learn of a step only by way of the state after it. Should it ever be rank 0, it has to report that step.

use ringtune_shared::ids::{ContentHash, Epoch};

use super::Error;
use crate::{
    ring::{self, RankRing, Traffic},
    session::StepSummary,
};

/// Steps that are told at most, the newest: what the coordinator has not stored by then is seconds old.
const MOST_TOLD: usize = 10_000;
/// Words of 16 bits, which 32-bit floats hold exactly, of a number of 64 bits.
const WORDS: usize = 4;
/// Numbers of 64 bits of a step.
const NUMBERS: usize = 18;
/// Floats of a step: the numbers, and its state's hash with whether there is one.
const ROW: usize = NUMBERS * WORDS + 33;

/// Exchanges the steps that are not stored yet; gives those of the rank `giver`. All ranks call it.
pub(super) async fn exchange(
    ring: &mut RankRing,
    own: &[StepSummary],
    giver: usize,
) -> Result<Vec<StepSummary>, Error> {
    let newest = &own[own.len().saturating_sub(MOST_TOLD)..];
    let own: &[StepSummary] = if ring.rank() == giver { newest } else { &[] };
    let counts = ring.gather_one_each(vec![own.len() as f32]).await?;
    let count = counts.get(giver).and_then(|row| row.first()).map_or(0, |count| *count as usize);
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut row: Vec<f32> = own.iter().flat_map(to_row).collect();
    row.resize(count.min(MOST_TOLD) * ROW, 0.0);
    let rows = ring.gather_one_each(row).await?;
    let told = rows.get(giver).map(|row| row.chunks_exact(ROW).map(from_row).collect::<Option<Vec<_>>>());
    told.flatten().ok_or(Error::Ring(ring::Error::Rows))
}

fn to_row(step: &StepSummary) -> Vec<f32> {
    let validation_loss = step.validation_loss.map_or(0, |loss| 1 << 32 | u64::from(loss.to_bits()));
    let numbers: [u64; NUMBERS] = [
        step.step,
        u64::from(step.loss.to_bits()),
        step.learning_rate.to_bits(),
        step.step_seconds.to_bits(),
        step.compute_seconds.to_bits(),
        step.exchange_seconds.to_bits(),
        step.wait_seconds.to_bits(),
        u64::from(step.skipped),
        step.world_size as u64,
        validation_loss,
        step.validation_seconds.to_bits(),
        step.preview_seconds.to_bits(),
        step.epoch.0,
        u64::from(step.state.is_some()),
        step.traffic.hidden_seconds.to_bits(),
        step.traffic.sent_bytes,
        step.traffic.collective_seconds.to_bits(),
        step.traffic.bus_bytes.to_bits(),
    ];
    let words = numbers.into_iter().flat_map(|number| [0, 16, 32, 48].map(|shift| (number >> shift) as u16));
    let hash = step.state.map_or([0; 32], |hash| hash.0);
    let mut row: Vec<f32> = words.map(f32::from).collect();
    row.extend(hash.map(f32::from));
    row.push(0.0);
    row
}

fn from_row(row: &[f32]) -> Option<StepSummary> {
    let (numbers, rest) = row.split_at_checked(NUMBERS * WORDS)?;
    let word = |(index, word): (usize, &f32)| u64::from(*word as u16) << (16 * index);
    let number = |words: &[f32]| words.iter().enumerate().map(word).fold(0, |sum, word| sum | word);
    let numbers: Vec<u64> = numbers.chunks_exact(WORDS).map(number).collect();
    let numbers: [u64; NUMBERS] = numbers.try_into().ok()?;
    let [
        step,
        loss,
        rate,
        all,
        compute,
        exchange,
        wait,
        skipped,
        size,
        validated,
        validating,
        showing,
        epoch,
        known,
        hidden,
        sent,
        travelling,
        bus,
    ] = numbers;
    let hash: Vec<u8> = rest.iter().take(32).map(|byte| *byte as u8).collect();
    let hash = ContentHash(hash.try_into().ok()?);
    Some(StepSummary {
        step,
        loss: f32::from_bits(loss as u32),
        learning_rate: f64::from_bits(rate),
        step_seconds: f64::from_bits(all),
        compute_seconds: f64::from_bits(compute),
        exchange_seconds: f64::from_bits(exchange),
        wait_seconds: f64::from_bits(wait),
        traffic: Traffic {
            hidden_seconds: f64::from_bits(hidden),
            sent_bytes: sent,
            collective_seconds: f64::from_bits(travelling),
            bus_bytes: f64::from_bits(bus),
        },
        skipped: skipped == 1,
        world_size: usize::try_from(size).ok()?,
        validation_loss: (validated >> 32 == 1).then(|| f32::from_bits(validated as u32)),
        validation_seconds: f64::from_bits(validating),
        preview_seconds: f64::from_bits(showing),
        epoch: Epoch(epoch),
        state: (known == 1).then_some(hash),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_step_survives_the_ring() {
        let plain = StepSummary::example(u64::MAX - 3);
        let full = StepSummary {
            step: 123_456_789_012,
            loss: 0.1,
            learning_rate: -2.5e-7,
            step_seconds: 1.0 / 3.0,
            compute_seconds: f64::MIN_POSITIVE,
            exchange_seconds: 1e300,
            wait_seconds: -0.0,
            traffic: Traffic {
                hidden_seconds: 0.1,
                sent_bytes: u64::MAX - 1,
                collective_seconds: 0.2,
                bus_bytes: 4e9 + 0.5,
            },
            skipped: true,
            world_size: 1024,
            validation_loss: Some(f32::MAX),
            validation_seconds: 7.5,
            preview_seconds: 8.5,
            epoch: Epoch(u64::MAX),
            state: Some(ContentHash::of(b"state")),
        };
        for step in [plain, full, StepSummary { validation_loss: Some(0.0), ..plain }] {
            let row = to_row(&step);
            assert_eq!((row.len(), from_row(&row)), (ROW, Some(step)));
        }
        // A loss that is not finite, too, though it equals nothing.
        let odd = StepSummary { loss: f32::NAN, validation_loss: Some(f32::NEG_INFINITY), ..full };
        let back = from_row(&to_row(&odd)).unwrap();
        assert_eq!((back.loss.to_bits(), back.validation_loss), (odd.loss.to_bits(), odd.validation_loss));
        assert_eq!(from_row(&[0.0; 5]), None);
    }
}
