//! `ringtune recover`: saves what is in the folders of runs that ended before they could.

use super::{destination, fetch, plural};
use crate::{
    cluster::{ClusterPlan, KeptRun, LocalCluster, Ports},
    error::Error,
    output::{Output, remark},
    run_arguments::RecoverArguments,
};

/// Saves the artifacts of one run, or of all that are left, and removes their folders.
pub(super) async fn recover(arguments: RecoverArguments) -> Result<(), Error> {
    let output = Output::new(arguments.output.output);
    let runs = match &arguments.folder {
        Some(folder) => vec![KeptRun::at(folder)?],
        None => KeptRun::settled(),
    };
    if runs.is_empty() {
        remark("no run left anything that is not saved");
    }
    if arguments.output_dir.is_some() && runs.len() > 1 {
        let folders: String = runs.iter().map(|run| format!("\n  {}", run.folder.display())).collect();
        return Err(Error::Usage(format!(
            "--output-dir: {} runs are left, whose files would be saved over each other; name one of them:{folders}",
            runs.len()
        )));
    }
    let mut failed = None;
    for run in runs {
        // What becomes of one run is nothing to the others.
        if let Err(error) = Box::pin(save(run, &arguments, output)).await
            && let Some(before) = failed.replace(error)
        {
            remark(&format!("error: {before}"));
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Saves those of one run, and removes its folder.
async fn save(run: KeptRun, arguments: &RecoverArguments, output: Output) -> Result<(), Error> {
    let record = run.record.as_ref();
    let named = record.map(|record| &record.output_dir);
    let Some(target) = arguments.output_dir.as_ref().or(named) else {
        // One that an earlier release kept.
        remark(&run.how_to_go_on());
        return Ok(());
    };
    let Some(job) = run.job_id() else {
        return Err(Error::Usage(format!("{} does not say which job it has", run.folder.display())));
    };
    let lock = run.lock()?;
    let folder = destination::prepare_folder(Some(target.clone()), "")?;
    // 1. Its coordinator, without workers: nothing goes on.
    let plan = ClusterPlan { folder: run.folder.clone(), workers: 0, ports: Ports::Free };
    let cluster = LocalCluster::start(&plan).await?;
    let first_step = record.and_then(|record| record.first_step);
    let saved = async { fetch::save_job(&cluster.client()?, job, first_step, &folder, output).await };
    let saved = Box::pin(saved).await;
    cluster.stop().await;
    // 2. What is saved is needed no more.
    let count = saved?.len();
    drop(lock);
    run.remove()?;
    remark(&format!("saved {count} {} in {}", plural(count as u32, "file"), folder.display()));
    Ok(())
}
