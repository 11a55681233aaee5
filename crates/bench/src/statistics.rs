//! Order statistics of samples.

/// Returns the middle sample, or the mean of the two middle ones; 0 without samples.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[length / 2],
        length => f64::midpoint(sorted[length / 2 - 1], sorted[length / 2]),
    }
}

/// Returns the smallest sample that is not less than 99 % of them. With fewer than 100 samples that is the largest.
pub(crate) fn p99(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    let rank = (sorted.len() * 99).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_samples_does_not_matter() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!((median(&samples), p99(&samples)), (100.5, 198.0));
        assert_eq!((median(&[3.0, 1.0, 2.0]), p99(&[3.0, 1.0, 2.0])), (2.0, 3.0));
        assert_eq!((median(&[]), p99(&[])), (0.0, 0.0));
    }
}
