//! Lists out of SQLite. The texts of queries are our own words alone: what comes from outside is bound.

use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments as _, AssertSqlSafe, SqliteConnection};

use super::portions::insert;
use super::readers::Readers;
use super::rows::{self, Damaged, SELECT_EVENTS, SELECT_JOBS, integer};
use crate::core::{ArtifactRecord, EventKind, Job, JobEvent};
use crate::store::Error;
use crate::store::lists::{ArtifactQuery, EventQuery, JobFilter, JobKey, JobOrder, JobQuery};

/// A query that grows: its text, and what is bound to its question marks.
struct Query {
    text: String,
    arguments: SqliteArguments,
}

impl Query {
    fn new(text: String) -> Self {
        Self { text, arguments: SqliteArguments::default() }
    }

    fn say(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    fn number(&mut self, text: &str, number: i64) -> Result<&mut Self, Error> {
        self.arguments.add(number).map_err(|error| Error::Database(error.to_string()))?;
        Ok(self.say(text))
    }

    fn word(&mut self, text: &str, word: &str) -> Result<&mut Self, Error> {
        self.arguments.add(word.to_owned()).map_err(|error| Error::Database(error.to_string()))?;
        Ok(self.say(text))
    }

    async fn rows(self, readers: &Readers) -> Result<Vec<SqliteRow>, Error> {
        Ok(sqlx::query_with(AssertSqlSafe(self.text), self.arguments).fetch_all(readers).await?)
    }
}

/// Puts new jobs where lists look for them.
pub(super) async fn insert_jobs(connection: &mut SqliteConnection, jobs: &[&Job]) -> Result<(), Error> {
    let into = "INSERT INTO job_list (number, state, name, kind, owner, priority, sweep) ";
    insert(connection, into, jobs, |row, job| {
        row.push_bind(integer(job.number))
            .push_bind(job.state.as_str())
            .push_bind(job.spec.common.name.as_str())
            .push_bind(job.spec.kind().as_str())
            .push_bind(job.queue.owner.as_str())
            .push_bind(i64::from(job.queue.priority))
            .push_bind(job.sweep.as_ref().map(|place| place.sweep.to_string()));
    })
    .await?;
    let labels = jobs.iter().flat_map(|job| job.queue.labels.iter().map(|label| (job.number, label)));
    let labels: Vec<(u64, (&String, &String))> = labels.collect();
    insert(
        connection,
        "INSERT INTO job_labels (key, value, number) ",
        &labels,
        |row, (number, (key, value))| {
            row.push_bind(key.as_str()).push_bind(value.as_str()).push_bind(integer(*number));
        },
    )
    .await
}

/// Tells the lists a job's state.
pub(super) async fn update_job(connection: &mut SqliteConnection, job: &Job) -> Result<(), Error> {
    sqlx::query("UPDATE job_list SET state = ?1 WHERE number = ?2 AND state <> ?1")
        .bind(job.state.as_str())
        .bind(integer(job.number))
        .execute(connection)
        .await?;
    Ok(())
}

/// A page of jobs: their numbers are found in the narrow rows of `job_list`, and only those are read in full.
pub(super) async fn jobs(readers: &Readers, damaged: &Damaged, query: &JobQuery) -> Result<Vec<Job>, Error> {
    let page = page_of_jobs(query)?;
    let found = page.rows(readers).await?;
    let jobs = found.iter().map(|row| rows::job_or_stand_in(row, damaged).transpose());
    let mut jobs = jobs.flatten().collect::<Result<Vec<Job>, Error>>()?;
    jobs.sort_by(|one, other| query.compare(&query.order.place(one), &query.order.place(other)));
    Ok(jobs)
}

fn page_of_jobs(query: &JobQuery) -> Result<Query, Error> {
    let (after, first) = if query.descending { ("<", "DESC") } else { (">", "ASC") };
    let order = match query.order {
        JobOrder::Creation => format!("number {first}"),
        JobOrder::Priority => format!("priority {first}, number"),
        JobOrder::Name => format!("name {first}, number"),
    };
    let mut page = Query::new("SELECT number FROM job_list WHERE TRUE".to_owned());
    filter_jobs(&mut page, &query.filter)?;
    if let Some(place) = &query.after {
        let number = integer(place.number);
        // The first comparison is there for the index; the second decides between equals.
        match &place.key {
            JobKey::Creation => page.number(&format!(" AND number {after} ?"), number)?,
            JobKey::Priority(priority) => {
                let priority = i64::from(*priority);
                page.number(&format!(" AND priority {after}= ?"), priority)?;
                page.number(&format!(" AND (priority {after} ?"), priority)?
                    .number(" OR number > ?)", number)?
            }
            JobKey::Name(name) => {
                page.word(&format!(" AND name {after}= ?"), name)?;
                page.word(&format!(" AND (name {after} ?"), name)?.number(" OR number > ?)", number)?
            }
        };
    }
    page.number(&format!(" ORDER BY {order} LIMIT ?"), i64::from(query.limit))?;
    page.text = format!("{SELECT_JOBS} WHERE jobs.number IN ({})", page.text);
    Ok(page)
}

/// The text of the query for a page of jobs.
#[cfg(test)]
pub(super) fn jobs_text(query: &JobQuery) -> Result<String, Error> {
    Ok(page_of_jobs(query)?.text)
}

fn filter_jobs(page: &mut Query, filter: &JobFilter) -> Result<(), Error> {
    if let Some(states) = &filter.states {
        let names: Vec<String> = states.iter().map(|state| format!("'{state}'")).collect();
        page.say(&format!(" AND state IN ({})", names.join(", ")));
    }
    if let Some(name) = &filter.name {
        page.word(" AND name = ?", name)?;
    }
    if let Some(owner) = &filter.owner {
        page.word(" AND owner = ?", owner)?;
    }
    if let Some(priority) = filter.priority {
        page.number(" AND priority = ?", i64::from(priority))?;
    }
    if let Some(kind) = filter.kind {
        page.word(" AND kind = ?", kind.as_str())?;
    }
    if let Some(sweep) = filter.sweep {
        page.word(" AND sweep = ?", &sweep.to_string())?;
    }
    for (key, value) in &filter.labels {
        page.word(" AND number IN (SELECT number FROM job_labels WHERE key = ?", key)?;
        page.word(" AND value = ?)", value)?;
    }
    Ok(())
}

/// A page of a job's artifacts.
pub(super) async fn artifacts(
    readers: &Readers,
    query: &ArtifactQuery,
) -> Result<Vec<ArtifactRecord>, Error> {
    let (after, first) = if query.descending { ("<", "DESC") } else { (">", "ASC") };
    let mut page = Query::new("SELECT * FROM artifacts".to_owned());
    // Recovery points are no files of the user's.
    page.word(
        " WHERE NOT (name >= '.recovery-' AND name < '.recovery.') AND job_id = ?",
        &query.job.to_string(),
    )?;
    if let Some(name) = &query.name {
        page.word(" AND name = ?", name)?;
    }
    if let Some(media_type) = &query.media_type {
        page.word(" AND media_type = ?", media_type)?;
    }
    match &query.after {
        Some((time, name)) if query.by_time => {
            page.number(&format!(" AND (created {after} ?"), time.0)?;
            page.number(" OR created = ?", time.0)?.word(" AND name > ?)", name)?;
        }
        Some((_, name)) => drop(page.word(&format!(" AND name {after} ?"), name)?),
        None => {}
    }
    let order = if query.by_time { format!("created {first}, name") } else { format!("name {first}") };
    page.number(&format!(" ORDER BY {order} LIMIT ?"), i64::from(query.limit))?;
    page.rows(readers).await?.iter().map(rows::artifact).collect()
}

/// A page of a job's events.
pub(super) async fn events(readers: &Readers, query: &EventQuery) -> Result<Vec<JobEvent>, Error> {
    let mut page = Query::new(SELECT_EVENTS.to_owned());
    page.word(" WHERE events.job_id = ?", &query.job.to_string())?;
    page.number(" AND sequence > ?", integer(query.above))?;
    if let Some(below) = query.below {
        page.number(" AND sequence < ?", integer(below))?;
    }
    if let Some(kind) = query.kind {
        // A body is an object of one key, the kind.
        let start = format!("{{\"{}\":", kind.as_str());
        // That of a step is kept with the step.
        let kept_elsewhere = if kind == EventKind::Step { "events.step IS NOT NULL OR " } else { "" };
        let body = format!(" AND ({kept_elsewhere}substr(events.body, 1, ?)");
        page.number(&body, integer(start.len() as u64))?.word(" = ?)", &start)?;
    }
    let first = if query.descending { "DESC" } else { "ASC" };
    page.number(&format!(" ORDER BY sequence {first} LIMIT ?"), i64::from(query.limit))?;
    page.rows(readers).await?.iter().map(|row| rows::event(query.job, row)).collect()
}
