//! The report for people.

use std::fmt::Write as _;

use super::{pictures::FolderReport, report::JobReport};
use crate::kinds::{DrawingReport, Estimate};

/// Names that are listed before "and 12 more".
const MOST_NAMES: usize = 10;
/// Columns of the word in front.
const LABEL: usize = 11;

/// Everything, a fact a line.
pub(in crate::doctor) fn render(report: &JobReport) -> String {
    let found = &report.found;
    let mut text = String::new();
    let mut line = |label: &str, fact: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{label:<LABEL$} {fact}");
    };
    // 1. What it is.
    line("job", &format!("{} ({})", report.name, report.job_file.display()));
    for folder in &report.folders {
        for (label, fact) in folder_lines(folder) {
            line(label, &fact);
        }
    }
    for (number, size) in found.sizes.iter().enumerate() {
        let label = if number == 0 { "sizes" } else { "" };
        line(label, &format!("{} x {}: {}", size.width, size.height, counted(size.pictures, "picture")));
    }
    if let Some(model) = &found.model {
        let hash = model.sha256.get(..12).unwrap_or(&model.sha256);
        line("model", &format!("{} (sha256 {hash}…), predicts {}", model.base, model.prediction_type));
    }
    if let Some(texts) = &found.texts {
        let hash = texts.sha256.get(..12).unwrap_or(&texts.sha256);
        line("model", &format!("{} (sha256 {hash}…)", texts.base));
        let (prompts, longest) = (texts.prompt_tokens.len(), texts.prompt_tokens.iter().max());
        let prompts = counted_long(prompts as u64, "prompt");
        line("prompts", &format!("{prompts}, of up to {} tokens", longest.copied().unwrap_or_default()));
        let most = texts.max_new_tokens;
        line("texts", &format!("{} of at most {most} tokens", counted_long(u64::from(texts.texts), "text")));
    }
    if let Some(language) = &found.language {
        let hash = language.sha256.get(..12).unwrap_or(&language.sha256);
        let used = if language.from_scratch { "its shape and tokenizer alone" } else { "its parameters too" };
        line("model", &format!("{} (sha256 {hash}…), {used}", language.base));
        line("tokens", &language.tokens);
        let steps = counted_long(language.steps, "step");
        let (windows, tokens) = (
            counted_long(language.windows_per_step, "window"),
            counted_long(language.tokens_per_step, "token"),
        );
        let rate = language.learning_rate;
        line("training", &format!("{steps} of {windows}, that is {tokens}; learning rate {rate:e}"));
    }
    // 2. What it learns from, or draws.
    for embedding in found.drawing.iter().flat_map(|drawing| &drawing.embeddings) {
        let hash = embedding.sha256.get(..12).unwrap_or(&embedding.sha256);
        line(
            "embedding",
            &format!("{}: {} (sha256 {hash}…)", embedding.token, counted(embedding.vectors, "vector")),
        );
    }
    for lora in found.drawing.iter().flat_map(|drawing| &drawing.loras) {
        let hash = lora.sha256.get(..12).unwrap_or(&lora.sha256);
        line("LoRA", &format!("{} x {} (sha256 {hash}…)", lora.name, lora.weight));
    }
    for word in &found.words {
        let ids = ids(&word.ids);
        let mut from = format!("starts from {:?}", word.initializer);
        if !word.initializer_ids.is_empty() {
            from += &format!(" (id {})", self::ids(&word.initializer_ids));
        }
        line("token", &format!("{}: {}, id {ids}, {from}", word.token, counted(word.ids.len(), "vector")));
    }
    for (number, prompt) in found.prompts.iter().enumerate() {
        line(if number == 0 { "prompts" } else { "" }, prompt);
    }
    if let Some(training) = &found.training {
        let batches = format!(
            "{} x {} = {}",
            counted_long(training.steps, "step"),
            training.global_batch,
            counted_long(training.samples, "sample")
        );
        let pictures: usize = found.sizes.iter().map(|size| size.pictures).sum();
        let epochs = if training.epoch_samples == pictures as u64 {
            format!("every picture {:.1} times", training.epochs)
        } else {
            format!("{:.1} passes of {}", training.epochs, counted_long(training.epoch_samples, "sample"))
        };
        line("training", &format!("{batches}: {epochs}; learning rate {:e}", training.learning_rate));
    }
    if let Some(drawing) = &found.drawing {
        line("drawing", &drawing_line(drawing));
    }
    // 3. What it takes.
    if let Some(estimate) = &found.estimate {
        for (label, fact) in estimate_lines(estimate, found.drawing.is_some()) {
            line(label, &fact);
        }
    }
    if let Some(sheet) = &report.sheet {
        let shown = format!("{} of {} pictures as the model sees them", sheet.shown, sheet.total);
        line("sheet", &format!("{}: {shown}", sheet.file.display()));
    }
    // 4. What is wrong.
    for warning in &report.warnings {
        line("warn", warning);
    }
    for problem in &report.problems {
        let field = if problem.field.is_empty() { String::new() } else { format!("{}: ", problem.field) };
        line("FAIL", &format!("{field}{}", problem.problem));
    }
    let outcome = match (report.can_start(), report.folders.iter().any(|folder| folder.uploaded)) {
        (true, _) => "This job can start.",
        (false, true) if report.problems.is_empty() => {
            "The pictures are at a coordinator: give it (--coordinator URL) to look at this job."
        }
        _ => "This job cannot start.",
    };
    let _ = write!(text, "\n{outcome}");
    text
}

fn folder_lines(folder: &FolderReport) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let whose = format!("{} ({})", folder.source, folder.field);
    if folder.uploaded {
        lines.push(("pictures", format!("uploaded: {whose}")));
        return lines;
    }
    if folder.unusable.is_none() {
        lines.push(("pictures", format!("{} in {whose}", folder.used)));
    }
    if let Some(captions) = &folder.captions {
        let missing = &captions.missing;
        let none = if missing.is_empty() { String::new() } else { format!("; none for {}", named(missing)) };
        lines.push((
            "captions",
            format!("for {} of {}{none}", captions.found, counted(folder.used, "picture")),
        ));
    }
    if !folder.skipped.is_empty() {
        lines.push(("skipped", format!("not used as pictures: {}", named(&folder.skipped))));
    }
    for group in folder.duplicates.iter().take(MOST_NAMES) {
        lines.push(("duplicates", format!("the same picture {} times: {}", group.len(), named(group))));
    }
    lines
}

fn drawing_line(drawing: &DrawingReport) -> String {
    let DrawingReport { prompts, count, pictures, batches, batch, scheduler, steps, guidance_scale, .. } =
        drawing;
    format!(
        "{} x {count} = {} in {} of at most {batch}; {scheduler}, {}, guidance {guidance_scale}",
        counted(*prompts, "prompt"),
        counted_long(*pictures, "picture"),
        if *batches == 1 { "1 batch".to_owned() } else { format!("{batches} batches") },
        counted_long(u64::from(*steps), "step"),
    )
}

fn estimate_lines(estimate: &Estimate, draws: bool) -> Vec<(&'static str, String)> {
    let memory = format!(
        "{:.1} GiB a rank, beside mapped files",
        estimate.private_bytes as f64 / f64::from(1u32 << 30)
    );
    let how = format!("{}, {}", estimate.precision, counted(estimate.threads, "thread"));
    let step = format!("{:.2} s a step here ({how})", estimate.step_seconds);
    let whole = format!("about {} in all", duration(estimate.total_seconds));
    let machines = match estimate.world_size {
        0 | 1 => String::new(),
        ranks => {
            format!(" on {ranks} machines like this one; {ranks} workers on this one alone share its cores")
        }
    };
    let what = if draws { "for the words and the VAE of a batch" } else { "to encode the pictures" };
    let encode = format!("{} {what}, {step}, {whole}{machines}", duration(estimate.encode_seconds));
    vec![("memory", memory), ("time", encode)]
}

fn named(names: &[String]) -> String {
    let mut text = names.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > MOST_NAMES {
        let _ = write!(text, " and {} more", names.len() - MOST_NAMES);
    }
    text
}

fn ids(ids: &[i64]) -> String {
    ids.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

fn counted(count: usize, what: &str) -> String {
    counted_long(count as u64, what)
}

fn counted_long(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// "4.2 s", "3 min 20 s", "2 h 5 min".
fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::problem::Problem, *};

    #[test]
    fn times_are_read_at_a_glance() {
        let shown = [0.04, 59.0, 61.2, 3725.0].map(duration);
        assert_eq!(shown, ["0.0 s", "59.0 s", "1 min 1 s", "1 h 2 min"]);
    }

    #[test]
    fn a_job_with_a_problem_cannot_start() {
        let problem = Problem { field: "train.resolution".to_owned(), problem: "7 is odd".to_owned() };
        let report = JobReport { problems: vec![problem], ..JobReport::default() };
        let text = render(&report);
        assert!(
            text.contains("FAIL        train.resolution: 7 is odd") && text.ends_with("cannot start."),
            "{text}"
        );
    }
}
