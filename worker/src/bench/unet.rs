//! `bench unet`: images a second of a whole UNet's training, by the size of a microbatch.

use std::io::Write as _;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::Serialize;

use super::{
    Bench, BenchOutput, Error, UnetTableArguments, blocking, check, check_resolution, made_up::Inputs,
    summary::Summary, trained::TrainedSteps, usage::PeakMemory,
};
use crate::kinds::{UnetForecast, UnetOptions};
use crate::{
    engine::{Library, UnetTensor},
    fault::Refusal,
    node::Node,
};

/// A microbatch of so many samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    microbatch: u32,
    /// What such a job is said to need.
    forecast_bytes: u64,
    /// None: this machine has no room for it.
    measured: Option<MeasuredRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct MeasuredRow {
    median_seconds: f64,
    images_per_second: f64,
    /// Of convolutions, linear layers and attention.
    flop_per_second: f64,
    of_roofline: f64,
    peak_private_bytes: u64,
}

/// Measures a row for each size of a microbatch, and prints them.
///
/// # Errors
/// See [`Error`]. What is wrong with the arguments is said before the model is loaded.
pub async fn unet(arguments: &UnetTableArguments, library: Library) -> Result<(), Error> {
    // 1. What can be refused without the model's weights.
    let node = Node::detect();
    let mut step = arguments.step();
    let plan = check(&step, &node)?;
    let how = &arguments.how;
    let mut forecast = UnetForecast::new(UnetOptions {
        resolution: arguments.resolution,
        ema: how.ema,
        gradient_checkpointing: how.gradient_checkpointing,
        attention: how.attention.into(),
        in_files: how.offload.is_some(),
    })?;
    let (checkpoint, options) = (step.checkpoint.clone(), step.model_options());
    let info =
        blocking(move || (library.check_folder)(&checkpoint, &options)).await?.map_err(Error::Model)?;
    let side = check_resolution(arguments.resolution, &info)?;
    // 2. Engine, model and the UNet's parameters, where one sample fits at least.
    let bench = Bench::open(&step, &plan, library, PeakMemory::start()).await?;
    let tensors = bench.engine.unet_tensors(step.checkpoint.clone(), step.model_options()).await?;
    let mut row = |microbatch: &u32| {
        let forecast_bytes = forecast.bytes(&tensors, plan.precision, *microbatch)?;
        Ok::<_, Refusal>(Row { microbatch: *microbatch, forecast_bytes, measured: None })
    };
    let rows: Result<Vec<Row>, Refusal> = arguments.microbatches.iter().map(&mut row).collect();
    let mut rows = rows.map_err(|refusal| Error::Option { option: "MODEL", problem: refusal.to_string() })?;
    let trained: usize = tensors.iter().map(UnetTensor::elements).sum();
    bench.say(
        &serde_json::json!({"parameters": info.parameters, "trained_parameters": trained}),
        &format!(
            "{:.2} million parameters, {:.2} of them are trained",
            info.parameters as f64 / 1e6,
            trained as f64 / 1e6
        ),
    )?;
    let has_room = |row: &Row| node.memory_bytes == 0 || row.forecast_bytes <= node.memory_bytes;
    let mut parameters = match rows.iter().any(has_room) {
        true => Some(TrainedSteps::unet(&bench.engine, &step.checkpoint, &arguments.how).await?),
        false => None,
    };
    // 3. The rows.
    let Bench { engine, meter, memory, precision, .. } = bench;
    let (mut engine, mut memory) = (engine, memory);
    for row in rows.iter_mut().filter(|row| has_room(row)) {
        step.batch = row.microbatch;
        memory.forget();
        let bench = Bench { arguments: &step, precision, engine, meter, memory };
        let inputs = Inputs::new(&info, row.microbatch as usize, side);
        let (measured, _) = bench.steps(&inputs, parameters.as_mut()).await?;
        row.measured = Some(MeasuredRow::of(&Summary::of(&measured), row.microbatch));
        if arguments.output == BenchOutput::Json {
            writeln!(std::io::stdout(), "{}", serde_json::to_string(row).map_err(std::io::Error::from)?)?;
        }
        (engine, memory) = (bench.engine, bench.memory);
    }
    // 4. What they say.
    match arguments.output {
        BenchOutput::Text => writeln!(std::io::stdout(), "{}", table(&rows))?,
        BenchOutput::Json => {
            for row in rows.iter().filter(|row| row.measured.is_none()) {
                writeln!(std::io::stdout(), "{}", serde_json::to_string(row).map_err(std::io::Error::from)?)?;
            }
        }
    }
    Ok(())
}

impl MeasuredRow {
    fn of(summary: &Summary, microbatch: u32) -> Self {
        let median_seconds = summary.median_seconds;
        Self {
            median_seconds,
            images_per_second: f64::from(microbatch) / median_seconds,
            flop_per_second: summary.flop / median_seconds,
            of_roofline: summary.of_roofline,
            peak_private_bytes: summary.peak_private_bytes,
        }
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["MICROBATCH", "S A STEP", "IMAGES/S", "TFLOP/S", "OF ROOFLINE", "MEMORY", "FORECAST"]);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let gigabytes = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
    for Row { microbatch, forecast_bytes, measured } in rows {
        let Some(measured) = measured else {
            let dash = || "-".to_owned();
            let needs = format!("needs {}", gigabytes(*forecast_bytes));
            table.add_row([microbatch.to_string(), dash(), dash(), dash(), dash(), dash(), needs]);
            continue;
        };
        table.add_row([
            microbatch.to_string(),
            format!("{:.2}", measured.median_seconds),
            format!("{:.3}", measured.images_per_second),
            format!("{:.3}", measured.flop_per_second / 1e12),
            format!("{:.1}%", 100.0 * measured.of_roofline),
            gigabytes(measured.peak_private_bytes),
            gigabytes(*forecast_bytes),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_room_says_what_it_needs() {
        let measured = MeasuredRow {
            median_seconds: 2.0,
            images_per_second: 0.5,
            flop_per_second: 3e12,
            of_roofline: 0.5,
            peak_private_bytes: 21_000_000_000,
        };
        let rows = [
            Row { microbatch: 1, forecast_bytes: 20_000_000_000, measured: Some(measured) },
            Row { microbatch: 32, forecast_bytes: 90_000_000_000, measured: None },
        ];
        let shown = table(&rows);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[1].contains("0.500") && lines[1].contains("21.00 GB"), "{shown}");
        assert!(lines[2].contains("32") && lines[2].contains("needs 90.00 GB"), "{shown}");
    }
}
