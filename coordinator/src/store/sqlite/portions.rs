//! Many rows in a few statements.

use sqlx::query_builder::Separated;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

use crate::store::Error;

/// Rows of one statement. Few lengths, so that few statements are prepared, and kept prepared.
const PORTIONS: [usize; 3] = [64, 8, 1];

/// Adds `rows` to the table and columns that `into` names.
pub(super) async fn insert<T>(
    connection: &mut SqliteConnection,
    into: &str,
    rows: &[T],
    bind: impl Fn(&mut Separated<'_, Sqlite, &'static str>, &T),
) -> Result<(), Error> {
    for portion in portions(rows) {
        let mut query = QueryBuilder::<Sqlite>::new(into);
        query.push_values(portion, |mut row, item| bind(&mut row, item));
        query.build().execute(&mut *connection).await?;
    }
    Ok(())
}

/// Cuts rows into what one statement takes.
pub(super) fn portions<T>(mut rows: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let length = PORTIONS.into_iter().find(|length| *length <= rows.len())?;
        let (portion, rest) = rows.split_at(length);
        rows = rest;
        Some(portion)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_in_portions_of_few_lengths_and_none_is_left_out() {
        let rows: Vec<usize> = (0..150).collect();
        let lengths: Vec<usize> = portions(&rows).map(<[usize]>::len).collect();
        assert_eq!(lengths, [64, 64, 8, 8, 1, 1, 1, 1, 1, 1]);
        assert_eq!(portions(&rows).flatten().copied().collect::<Vec<_>>(), rows);
        assert!(portions::<usize>(&[]).next().is_none());
    }
}
