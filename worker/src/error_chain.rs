//! Errors with their sources, for outermost errors that say little.

/// An error with all its causes: tonic's own message is "transport error"; what happened is in its sources.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors say their cause themselves.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// The error of some type among the causes of another.
pub(crate) fn cause_of<'a, E: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a E> {
    std::iter::successors(Some(error), |error| error.source()).find_map(|cause| cause.downcast_ref())
}
