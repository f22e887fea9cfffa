//! The table and the events of all steps of a job, of which another rank did the first: from what the coordinator has
//! stored and what this rank knows besides. Written at the end, when the coordinator is needed anyhow.

use std::path::{Path, PathBuf};

use ringtune_proto::v1;

use crate::{
    output::{
        self, EventFile, MetricsCsv, StepMetrics, metrics_csv, metrics_csv::CsvTraffic,
        tensorboard::EventPicture,
    },
    rank::{Error, Rank},
    session::StepSummary,
};

/// A picture that this rank has kept.
#[derive(Clone, Debug)]
pub(super) struct KeptPicture {
    pub(super) step: u64,
    pub(super) label: String,
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) file: PathBuf,
}

/// What the files are made of besides the steps.
#[derive(Debug, Default)]
pub(super) struct History {
    tensorboard: bool,
    pictures: Vec<KeptPicture>,
}

impl History {
    /// `tensorboard`: events are wanted too.
    pub(super) fn new(tensorboard: bool) -> Self {
        Self { tensorboard, pictures: Vec::new() }
    }

    /// Takes in a picture, for the events.
    pub(super) fn show(&mut self, picture: KeptPicture) {
        if self.tensorboard {
            self.pictures.push(picture);
        }
    }

    /// Writes the files, each step once, and adds their names. `unstored`: in the order of the steps.
    ///
    /// # Errors
    /// The coordinator refuses; a file cannot be written, or does not read back.
    pub(super) async fn write(
        self,
        rank: &Rank,
        unstored: &[StepSummary],
        names: &mut Vec<String>,
    ) -> Result<(), Error> {
        let (folder, tensorboard) = (rank.folder.clone(), self.tensorboard);
        let mut own: Vec<StepMetrics> = unstored.iter().map(metrics_of).collect();
        own.reverse();
        let mut page = rank.context.artifacts.steps(rank.life.job, 0).await?;
        // The job's first step, whichever rank and ring did it.
        let stored = page.iter().map(|step| step.step).min().and_then(|step| u64::try_from(step).ok());
        let first = stored.into_iter().chain(own.last().map(|step| step.step)).min().unwrap_or(1);
        let create = move || Files::create(&folder, tensorboard.then_some(first));
        let mut files = ringtune_shared::tasks::spawn_blocking(create).await??;
        let mut last = 0;
        let newest_of = |page: &[v1::StepReport]| page.iter().map(|step| step.step).max();
        while let Some(newest) = newest_of(&page).filter(|newest| *newest > last) {
            last = newest;
            let steps = merge(page.iter().map(metrics_of_report).collect(), &mut own);
            files = ringtune_shared::tasks::spawn_blocking(move || files.append(steps)).await??;
            page = rank.context.artifacts.steps(rank.life.job, last).await?;
        }
        let steps = own.into_iter().rev().collect();
        let finish = move || files.append(steps)?.finish(self.pictures);
        names.extend(ringtune_shared::tasks::spawn_blocking(finish).await??);
        Ok(())
    }
}

/// The files as they grow.
struct Files {
    csv: MetricsCsv,
    events: Option<EventFile>,
}

impl Files {
    /// `events_from`: the first step, where events are wanted.
    fn create(folder: &Path, events_from: Option<u64>) -> Result<Self, output::Error> {
        let csv = MetricsCsv::create(&folder.join(metrics_csv::FILE_NAME))?;
        let events = events_from.map(|first| EventFile::create(folder, first)).transpose()?;
        Ok(Self { csv, events })
    }

    fn append(mut self, steps: Vec<StepMetrics>) -> Result<Self, output::Error> {
        for step in &steps {
            self.csv.append(step)?;
            if let Some(events) = &mut self.events {
                events.append_step(step)?;
            }
        }
        Ok(self)
    }

    fn finish(self, pictures: Vec<KeptPicture>) -> Result<Vec<String>, output::Error> {
        self.csv.finish()?;
        let mut names = vec![metrics_csv::FILE_NAME.to_owned()];
        if let Some(mut events) = self.events {
            for KeptPicture { step, label, height, width, file } in pictures {
                let png = std::fs::read(&file)
                    .map_err(|error| output::read_back::different(&file, error.to_string()))?;
                events.append_pictures(step, vec![EventPicture { label, height, width, png }])?;
            }
            names.push(events.finish()?);
        }
        Ok(names)
    }
}

/// Stored steps with those between them that only this rank knows. What is stored counts. Takes from the end of `own`
/// what comes before the last stored one.
fn merge(stored: Vec<StepMetrics>, own: &mut Vec<StepMetrics>) -> Vec<StepMetrics> {
    let mut steps = Vec::with_capacity(stored.len());
    for step in stored {
        while let Some(next) = own.pop_if(|next| next.step <= step.step) {
            if next.step < step.step {
                steps.push(next);
            }
        }
        steps.push(step);
    }
    steps
}

/// A step as this rank measured it.
pub(super) fn metrics_of(step: &StepSummary) -> StepMetrics {
    StepMetrics {
        step: step.step,
        loss: step.loss,
        lr: step.learning_rate,
        step_seconds: step.step_seconds,
        compute_seconds: step.compute_seconds,
        exchange_seconds: step.exchange_seconds,
        wait_seconds: step.wait_seconds,
        validation_loss: step.validation_loss,
        validation_seconds: step.validation_seconds,
        preview_seconds: step.preview_seconds,
        traffic: Some(CsvTraffic {
            hidden_exchange_seconds: step.traffic.hidden_seconds,
            sent_bytes: step.traffic.sent_bytes,
            bus_bytes_per_second: step.traffic.bus_bandwidth(),
        }),
    }
}

/// A step as it is stored: in numbers of 64 bits, which hold those of 32 exactly.
fn metrics_of_report(report: &v1::StepReport) -> StepMetrics {
    StepMetrics {
        step: u64::try_from(report.step).unwrap_or_default(),
        loss: report.loss as f32,
        lr: report.learning_rate,
        step_seconds: report.step_seconds,
        compute_seconds: report.compute_seconds,
        exchange_seconds: report.exchange_seconds,
        wait_seconds: report.wait_seconds,
        validation_loss: report.validation_loss.map(|loss| loss as f32),
        validation_seconds: report.validation_seconds,
        preview_seconds: report.preview_seconds,
        traffic: report.traffic.as_ref().map(|traffic| CsvTraffic {
            hidden_exchange_seconds: traffic.hidden_exchange_seconds,
            sent_bytes: u64::try_from(traffic.sent_bytes).unwrap_or_default(),
            bus_bytes_per_second: traffic.bus_bytes_per_second,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::tensorboard;
    use crate::ring::Traffic;

    fn own(step: u64) -> StepMetrics {
        metrics_of(&StepSummary { loss: 1.0, ..StepSummary::example(step) })
    }

    fn stored(step: i64) -> StepMetrics {
        metrics_of_report(&v1::StepReport { step, loss: 2.0, ..v1::StepReport::default() })
    }

    #[test]
    fn each_step_is_written_once_and_what_is_stored_counts() {
        let mut known: Vec<StepMetrics> = [3, 4, 6, 7, 8].map(own).into_iter().rev().collect();
        let merged = merge([1, 2, 4, 5, 7].map(stored).to_vec(), &mut known);
        let told: Vec<(u64, f32)> = merged.iter().map(|step| (step.step, step.loss)).collect();
        assert_eq!(told, [(1, 2.0), (2, 2.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 1.0), (7, 2.0)]);
        assert_eq!(known, [own(8)]);
    }

    #[test]
    fn a_line_is_the_same_by_way_of_the_coordinator() {
        let folder = tempfile::tempdir().unwrap();
        let summaries = [
            StepSummary {
                loss: 0.1,
                learning_rate: 1e-3 / 3.0,
                validation_loss: Some(1e-7),
                ..StepSummary::example(1)
            },
            StepSummary { loss: 16_777_217.0, step_seconds: 1.000_000_4, ..StepSummary::example(2) },
            StepSummary {
                loss: f32::NAN,
                preview_seconds: 2.5,
                traffic: Traffic {
                    hidden_seconds: 0.1,
                    sent_bytes: 1 << 40,
                    collective_seconds: 0.3,
                    bus_bytes: 1e9,
                },
                ..StepSummary::example(3)
            },
        ];
        let write = |name: &str, steps: Vec<StepMetrics>| {
            let place = folder.path().join(name);
            std::fs::create_dir(&place).unwrap();
            let names = Files::create(&place, Some(1)).unwrap().append(steps).unwrap().finish(Vec::new());
            assert_eq!(names.unwrap(), [metrics_csv::FILE_NAME, &tensorboard::file_name(1)]);
            std::fs::read(place.join(metrics_csv::FILE_NAME)).unwrap()
        };
        let straight = write("straight", summaries.iter().map(metrics_of).collect());
        let reports = summaries.iter().map(|step| v1::StepReport {
            step: step.step as i64,
            loss: f64::from(step.loss),
            learning_rate: step.learning_rate,
            step_seconds: step.step_seconds,
            validation_loss: step.validation_loss.map(f64::from),
            preview_seconds: step.preview_seconds,
            traffic: Some(v1::RingTraffic {
                hidden_exchange_seconds: step.traffic.hidden_seconds,
                sent_bytes: step.traffic.sent_bytes as i64,
                collective_seconds: step.traffic.collective_seconds,
                bus_bytes_per_second: step.traffic.bus_bandwidth(),
            }),
            ..v1::StepReport::default()
        });
        let around = write("around", reports.map(|report| metrics_of_report(&report)).collect());
        assert_eq!(String::from_utf8(straight).unwrap(), String::from_utf8(around).unwrap());
    }
}
