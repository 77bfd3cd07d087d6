//! The arithmetic: the latency of one request gives requests a second; times the bytes of a block, times the requests
//! in parallel, that is bandwidth, until a cap is met. It has no clock and measures nothing.

use serde::{Deserialize, Serialize};

/// The share of the highest bandwidth from which a cell has reached it.
const REACHED: f64 = 0.9;

/// How a thing serves requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestModel {
    /// Seconds until the first byte of a request.
    pub access_s: f64,
    /// Seconds of each byte of a request after that, when it is alone.
    pub byte_s: f64,
    /// The most requests a second, if there is a limit.
    pub requests_cap: Option<f64>,
    /// The most bytes a second, if there is a limit.
    pub bytes_cap: Option<f64>,
}

/// What ends the growth of a predicted bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Only latency: more requests in parallel, or larger ones, give more.
    Latency,
    /// The requests a second: larger requests give more.
    Requests,
    /// The bytes a second: nothing gives more.
    Bytes,
}

/// A bandwidth, and what bounds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    pub bytes_per_s: f64,
    pub bound: Bound,
}

/// A point that was measured: requests of so many bytes, so many in parallel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitCell {
    pub block_bytes: u64,
    pub parallel: u64,
    pub bytes_per_s: f64,
    /// Seconds of a request, where they were taken.
    pub latency: Option<RequestLatency>,
    /// What the arithmetic says.
    pub predicted_bytes_per_s: f64,
    /// Processors in use meanwhile: in programs and in the kernel.
    pub cores: Option<[f64; 2]>,
}

/// The latency of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestLatency {
    pub p50_s: f64,
    pub p99_s: f64,
}

impl RequestModel {
    /// A thing whose requests take as long whatever their size, without a cap.
    pub fn of_latency(access_s: f64) -> Self {
        Self { access_s, byte_s: 0.0, requests_cap: None, bytes_cap: None }
    }

    /// Fits the model to what was measured: the time of one small and of one large request alone (bytes and seconds),
    /// and the highest rates.
    pub fn fitted(small: (u64, f64), large: (u64, f64), requests_cap: f64, bytes_cap: f64) -> Self {
        let bytes = large.0.saturating_sub(small.0);
        let byte_s = if bytes == 0 { 0.0 } else { ((large.1 - small.1) / bytes as f64).max(0.0) };
        Self {
            access_s: (small.1 - small.0 as f64 * byte_s).max(0.0),
            byte_s,
            requests_cap: Some(requests_cap),
            bytes_cap: Some(bytes_cap),
        }
    }

    /// Returns the seconds of one request alone.
    pub fn latency_s(&self, block_bytes: f64) -> f64 {
        self.access_s + block_bytes * self.byte_s
    }

    /// Returns the bandwidth of requests of that size, so many in parallel.
    pub fn predict(&self, block_bytes: f64, parallel: f64) -> Prediction {
        let free = parallel * block_bytes / self.latency_s(block_bytes);
        let by_requests = self.requests_cap.map_or(f64::INFINITY, |cap| cap * block_bytes);
        let by_bytes = self.bytes_cap.unwrap_or(f64::INFINITY);
        let bytes_per_s = free.min(by_requests).min(by_bytes);
        let bound = match () {
            () if free <= bytes_per_s => Bound::Latency,
            () if by_requests <= by_bytes => Bound::Requests,
            () => Bound::Bytes,
        };
        Prediction { bytes_per_s, bound }
    }
}

impl RequestLatency {
    /// Summarizes the seconds of requests; zero if there are none.
    pub fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = ((seconds.len() as f64 * part).ceil() as usize).saturating_sub(1);
            seconds.get(place).copied().unwrap_or(0.0)
        };
        Self { p50_s: at(0.5), p99_s: at(0.99) }
    }
}

impl LimitCell {
    /// Returns the bytes that are asked for at a time.
    pub fn in_flight(&self) -> u64 {
        self.block_bytes.saturating_mul(self.parallel)
    }

    /// Returns measured over predicted, less one: 0 is a prediction that was right.
    pub fn deviation(&self) -> f64 {
        self.bytes_per_s / self.predicted_bytes_per_s - 1.0
    }
}

/// Returns the cell with the highest bandwidth.
pub fn peak(cells: &[LimitCell]) -> Option<&LimitCell> {
    cells.iter().max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s))
}

/// Returns the knee: of the cells that come within a tenth of the highest bandwidth, the one with the fewest bytes in
/// flight; of those with as many, the one with the fewest requests. Beyond it, more requests and larger ones only wait.
pub fn knee(cells: &[LimitCell]) -> Option<&LimitCell> {
    let enough = peak(cells)?.bytes_per_s * REACHED;
    let reached = cells.iter().filter(|cell| cell.bytes_per_s >= enough);
    reached.min_by_key(|cell| (cell.in_flight(), cell.parallel))
}

/// Returns the cells below the knee: those with fewer bytes in flight.
pub fn below_knee(cells: &[LimitCell]) -> impl Iterator<Item = &LimitCell> {
    let knee = knee(cells).map_or(0, LimitCell::in_flight);
    cells.iter().filter(move |cell| cell.in_flight() < knee)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A cell as the model has it.
    pub fn cell(model: &RequestModel, block_bytes: u64, parallel: u64) -> LimitCell {
        let bytes_per_s = model.predict(block_bytes as f64, parallel as f64).bytes_per_s;
        LimitCell {
            block_bytes,
            parallel,
            bytes_per_s,
            latency: None,
            predicted_bytes_per_s: bytes_per_s,
            cores: None,
        }
    }

    /// All cells of some blocks and depths.
    pub fn grid(model: &RequestModel, blocks: u32, depths: u32) -> Vec<LimitCell> {
        let depths = move |block| (0..depths).map(move |depth| (512_u64 << block, 1_u64 << depth));
        (0..blocks).flat_map(depths).map(|(block, depth)| cell(model, block, depth)).collect()
    }

    #[test]
    fn latency_bounds_first_then_requests_then_bytes() {
        let model =
            RequestModel { access_s: 1e-4, byte_s: 0.0, requests_cap: Some(4e4), bytes_cap: Some(1e9) };
        for (block, parallel, bytes_per_s, bound) in [
            (4096.0, 1.0, 40_960_000.0, Bound::Latency),
            (4096.0, 4.0, 163_840_000.0, Bound::Latency),
            (4096.0, 64.0, 163_840_000.0, Bound::Requests),
            (65_536.0, 64.0, 1e9, Bound::Bytes),
        ] {
            let prediction = model.predict(block, parallel);
            assert_eq!(prediction.bound, bound, "{block} {parallel}");
            assert!((prediction.bytes_per_s / bytes_per_s - 1.0).abs() < 1e-9, "{prediction:?}");
        }
    }

    #[test]
    fn a_fit_goes_through_both_requests() {
        let model = RequestModel::fitted((512, 1e-4), (1 << 20, 1.1e-3), 1e5, 1e9);
        assert!((model.latency_s(512.0) - 1e-4).abs() < 1e-12);
        assert!((model.latency_s(1_048_576.0) - 1.1e-3).abs() < 1e-12);
        // A large request that is no slower costs nothing for its bytes; one size alone has no slope.
        assert_eq!(RequestModel::fitted((512, 1e-4), (1 << 20, 0.9e-4), 1e5, 1e9).byte_s, 0.0);
        assert_eq!(RequestModel::fitted((512, 1e-4), (512, 1e-4), 1e5, 1e9).access_s, 1e-4);
    }

    #[test]
    fn percentiles_are_samples() {
        let latency = RequestLatency::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((latency.p50_s, latency.p99_s), (50.0, 99.0));
        assert_eq!(RequestLatency::of(vec![3.0]), RequestLatency { p50_s: 3.0, p99_s: 3.0 });
    }

    #[test]
    fn no_cells_have_no_knee() {
        assert!(knee(&[]).is_none() && below_knee(&[]).next().is_none());
    }

    proptest! {
        #[test]
        fn a_knee_has_the_bandwidth_and_nothing_below_it_has(
            speeds in prop::collection::vec((0_u32..15, 0_u32..9, 1.0_f64..1e10), 1..60),
        ) {
            let none = RequestModel::of_latency(1.0);
            let cells: Vec<_> = speeds
                .iter()
                .map(|&(block, depth, bytes_per_s)| LimitCell { bytes_per_s, ..cell(&none, 512 << block, 1 << depth) })
                .collect();
            let highest = peak(&cells).expect("a cell").bytes_per_s;
            let found = knee(&cells).expect("a cell");
            prop_assert!(found.bytes_per_s >= 0.9 * highest);
            prop_assert!(below_knee(&cells).all(|cell| cell.bytes_per_s < 0.9 * highest));
            // Neither the order of the cells nor the unit of the bandwidth matters.
            let other: Vec<_> = cells
                .iter()
                .rev()
                .map(|cell| LimitCell { bytes_per_s: cell.bytes_per_s * 1024.0, ..cell.clone() })
                .collect();
            let other = knee(&other).expect("a cell");
            prop_assert_eq!((other.in_flight(), other.parallel), (found.in_flight(), found.parallel));
        }

        #[test]
        fn the_knee_of_a_model_is_where_its_cap_is_met(
            access_us in 1.0_f64..10_000.0,
            cap_mb in 1.0_f64..10_000.0,
        ) {
            let model = RequestModel { bytes_cap: Some(cap_mb * 1e6), ..RequestModel::of_latency(access_us * 1e-6) };
            let cells = grid(&model, 15, 9);
            let found = knee(&cells).expect("a cell");
            let needed = 0.9 * peak(&cells).expect("a cell").bytes_per_s * model.access_s;
            // Bytes in flight are powers of two.
            let in_flight = found.in_flight() as f64;
            prop_assert!(in_flight >= needed * 0.999 && (in_flight < 2.001 * needed || in_flight <= 512.0));
        }
    }
}
