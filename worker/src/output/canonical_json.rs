//! JSON with one spelling for each value.

use serde_json::Value;

/// The value as JSON text without blanks, every object's keys in the order of their bytes (whatever map serde_json
/// was built with), so that equal values have equal text.
pub fn canonical_json(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by(|a, b| a.0.cmp(b.0));
            let field = |(key, value): &(&String, &Value)| {
                format!("{}:{}", Value::from(key.as_str()), canonical_json(value))
            };
            format!("{{{}}}", sorted.iter().map(field).collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(canonical_json).collect::<Vec<_>>().join(","))
        }
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_sorted_at_every_depth() {
        let value = json!({"b": [{"z": 1, "a": null}, "x\"y"], "a": 2e-3, "é": true, "A": {}});
        assert_eq!(canonical_json(&value), r#"{"A":{},"a":0.002,"b":[{"a":null,"z":1},"x\"y"],"é":true}"#);
        assert_eq!(serde_json::from_str::<Value>(&canonical_json(&value)).unwrap(), value);
    }
}
