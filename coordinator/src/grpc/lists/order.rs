//! `order_by` of the lists: one field, and whether the greatest comes first. Pure.

use ringtune_proto::convert::FieldError;

/// The order of a list of things that can be ordered by `By`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order<By> {
    pub(super) by: By,
    pub(super) descending: bool,
}

impl<By: Copy> Order<By> {
    /// Reads an order; an empty one is the list's own, `default`.
    ///
    /// # Errors
    /// Anything but the name of one of `fields`, or that and "desc", with what is allowed.
    pub(super) fn parse(text: &str, fields: &[(&str, By)], default: Self) -> Result<Self, FieldError> {
        let mut words = text.split_whitespace();
        let Some(name) = words.next() else { return Ok(default) };
        let descending = match words.next() {
            None => Some(false),
            Some("desc") => words.next().is_none().then_some(true),
            Some(_) => None,
        };
        let by = fields.iter().find(|(known, _)| *known == name).map(|(_, by)| *by);
        match (by, descending) {
            (Some(by), Some(descending)) => Ok(Self { by, descending }),
            _ => {
                let given: String = text.chars().take(100).collect();
                let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
                let problem =
                    format!("got {given:?}; allowed: {}, each with \" desc\" or without", names.join(", "));
                Err(FieldError::new("order_by", problem))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIELDS: [(&str, char); 2] = [("create_time", 'c'), ("name", 'n')];
    const DEFAULT: Order<char> = Order { by: 'c', descending: true };

    fn parse(text: &str) -> Result<Order<char>, FieldError> {
        Order::parse(text, &FIELDS, DEFAULT)
    }

    #[test]
    fn one_field_and_a_direction_are_read() {
        assert_eq!((parse(""), parse(" ")), (Ok(DEFAULT), Ok(DEFAULT)));
        assert_eq!(parse("name"), Ok(Order { by: 'n', descending: false }));
        assert_eq!(parse(" create_time  desc "), Ok(Order { by: 'c', descending: true }));
    }

    #[test]
    fn anything_else_is_refused_with_what_is_allowed() {
        for wrong in ["colour", "Name", "name asc", "name DESC", "name desc desc", "name,create_time", "desc"]
        {
            let error = parse(wrong).unwrap_err();
            assert_eq!(error.field, "order_by");
            let rest = "allowed: create_time, name, each with \" desc\" or without";
            assert_eq!(error.problem, format!("got {wrong:?}; {rest}"));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = parse(&text);
        }
    }
}
