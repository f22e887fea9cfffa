//! What Slurm gave to the task that this process is, by the variables that it sets for it.
//! Source: the manual page of srun(1), "OUTPUT ENVIRONMENT VARIABLES".

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An allocation of Slurm, as one of its tasks sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its id.
    pub job: String,
    /// Processors of each task, where somebody asked for them.
    pub processors: Option<usize>,
    /// Bytes of memory of each task, where somebody asked for them.
    pub memory_bytes: Option<u64>,
    /// When Slurm takes it away; of Slurm before 22.05 nobody knows.
    pub ends: Option<SystemTime>,
}

impl Allocation {
    /// The one that this process is in.
    pub fn of_process() -> Option<Self> {
        Self::of(|name| std::env::var(name).ok())
    }

    /// Of variables.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.parse::<u64>().ok();
        let job = variable("SLURM_JOB_ID").filter(|job| !job.is_empty())?;
        let processors = number("SLURM_CPUS_PER_TASK");
        // Memory is in MiB; 0 is all of the node's.
        let of_node = number("SLURM_MEM_PER_NODE")
            .map(|memory| memory / number("SLURM_NTASKS_PER_NODE").filter(|tasks| *tasks > 0).unwrap_or(1));
        let of_processors = number("SLURM_MEM_PER_CPU").zip(processors).map(|(memory, count)| memory * count);
        let memory = of_node.or(of_processors).filter(|memory| *memory > 0);
        Some(Self {
            job,
            processors: processors.and_then(|count| usize::try_from(count).ok()),
            memory_bytes: memory.map(|mebibytes| mebibytes.saturating_mul(1 << 20)),
            ends: number("SLURM_JOB_END_TIME")
                .and_then(|time| UNIX_EPOCH.checked_add(Duration::from_secs(time))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<Allocation> {
        Allocation::of(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_allocation_says_what_a_task_has() {
        assert_eq!(of(&[]), None);
        let plain = of(&[("SLURM_JOB_ID", "7"), ("SLURM_MEM_PER_NODE", "0")]).unwrap();
        assert_eq!(
            (plain.job.as_str(), plain.processors, plain.memory_bytes, plain.ends),
            ("7", None, None, None)
        );
        let all = [("SLURM_JOB_ID", "7"), ("SLURM_CPUS_PER_TASK", "4"), ("SLURM_JOB_END_TIME", "60")];
        let by_node =
            of(&[&all[..], &[("SLURM_MEM_PER_NODE", "4096"), ("SLURM_NTASKS_PER_NODE", "2")]].concat());
        let by_node = by_node.unwrap();
        assert_eq!((by_node.processors, by_node.memory_bytes), (Some(4), Some(2 << 30)));
        assert_eq!(by_node.ends, Some(UNIX_EPOCH + Duration::from_secs(60)));
        let by_processor = of(&[&all[..], &[("SLURM_MEM_PER_CPU", "1024")]].concat()).unwrap();
        assert_eq!(by_processor.memory_bytes, Some(4 << 30));
    }
}
