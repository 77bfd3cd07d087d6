//! What the apps on the kernel's devices share: interfaces by name, memory shared with the kernel,
//! and a device that may go away and come back.

mod intake;
pub(crate) mod interface;
#[allow(unsafe_code)]
pub(crate) mod mapping;
pub(crate) mod namespace;
#[allow(unsafe_code)]
pub(crate) mod sys;

use std::time::Duration;

use rustix::io::Errno;

pub(crate) use intake::Intake;

/// How long after a device was lost, or was still away, it is looked for again.
pub(crate) const RETRY: Duration = Duration::from_millis(200);
/// How often a device is asked whether it is still there.
pub(crate) const LOOK: Duration = Duration::from_millis(1);
/// How often the kernel is asked what it dropped.
pub(crate) const STATISTICS: Duration = Duration::from_millis(100);

/// A call on a device that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {errno}")]
pub(crate) struct DeviceFailure {
    /// The call, as its manual page names it.
    pub call: &'static str,
    /// What the kernel said.
    pub errno: Errno,
}

/// Names the call in a failure: `.map_err(failed("socket"))`.
pub(crate) fn failed(call: &'static str) -> impl FnOnce(Errno) -> DeviceFailure {
    move |errno| DeviceFailure { call, errno }
}

impl DeviceFailure {
    /// Whether the device is not there, or down: it may come back.
    pub(crate) fn is_away(&self) -> bool {
        is_away(self.errno)
    }
}

/// Whether an error says that a device is not there, or down.
pub(crate) fn is_away(errno: Errno) -> bool {
    matches!(errno, Errno::NETDOWN | Errno::NODEV | Errno::NXIO | Errno::BADFD)
}

/// A device that may go away while its app goes on: closed then, and opened again when it is back.
#[derive(Debug)]
pub(crate) struct DeviceLine<D> {
    device: Option<D>,
    retry_ns: u64,
    look_ns: u64,
    statistics_ns: u64,
    losses: u64,
}

impl<D> DeviceLine<D> {
    /// With a device, or without one that was away from the start.
    pub(crate) fn new(device: Option<D>) -> Self {
        Self { device, retry_ns: 0, look_ns: 0, statistics_ns: 0, losses: 0 }
    }

    /// A device to start with: one that is away is waited for, any other failure is one.
    pub(crate) fn start(opened: Result<D, DeviceFailure>) -> Result<Self, DeviceFailure> {
        match opened {
            Ok(device) => Ok(Self::new(Some(device))),
            Err(failure) if failure.is_away() => Ok(Self::new(None)),
            Err(failure) => Err(failure),
        }
    }

    /// The device, if it is there.
    pub(crate) fn device(&mut self) -> Option<&mut D> {
        self.device.as_mut()
    }

    /// The device, if it is there; `open` is asked for it every [`RETRY`] if it is not.
    pub(crate) fn device_or(
        &mut self,
        now_ns: u64,
        open: impl FnOnce() -> Result<D, DeviceFailure>,
    ) -> Option<&mut D> {
        if self.device.is_none() && now_ns >= self.retry_ns {
            self.retry_ns = now_ns + RETRY.as_nanos() as u64;
            self.device = open().ok();
        }
        self.device.as_mut()
    }

    /// The device, to be looked at only.
    pub(crate) fn peek(&self) -> Option<&D> {
        self.device.as_ref()
    }

    /// Closes the device.
    pub(crate) fn lose(&mut self, now_ns: u64) {
        if self.device.take().is_some() {
            self.losses += 1;
            self.retry_ns = now_ns + RETRY.as_nanos() as u64;
        }
    }

    /// Whether it is time to [`LOOK`] whether the device is still there.
    pub(crate) fn shall_look(&mut self, now_ns: u64) -> bool {
        let due = now_ns >= self.look_ns;
        if due {
            self.look_ns = now_ns + LOOK.as_nanos() as u64;
        }
        due
    }

    /// When the next look is due.
    pub(crate) fn look_ns(&self) -> u64 {
        self.look_ns
    }

    /// Whether it is time for [`STATISTICS`].
    pub(crate) fn shall_count(&mut self, now_ns: u64) -> bool {
        let due = now_ns >= self.statistics_ns;
        if due {
            self.statistics_ns = now_ns + STATISTICS.as_nanos() as u64;
        }
        due
    }

    /// When to be called again though nothing arrives.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        self.device.is_none().then_some(self.retry_ns)
    }

    /// How often the device went away.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: DeviceFailure = DeviceFailure { call: "open", errno: Errno::NODEV };

    #[test]
    fn a_device_that_goes_away_is_opened_again() {
        let retry = RETRY.as_nanos() as u64;
        let mut line = DeviceLine::new(Some(1));
        assert_eq!(line.wake_ns(), None);
        assert_eq!(line.device_or(5, || Err(GONE)), Some(&mut 1));
        line.lose(5);
        line.lose(6);
        assert_eq!((line.peek(), line.losses(), line.wake_ns()), (None, 1, Some(5 + retry)));
        assert_eq!(line.device_or(4 + retry, || Ok(2)), None, "too early");
        assert_eq!(line.device_or(5 + retry, || Err(GONE)), None);
        assert_eq!(line.device_or(6 + retry, || Ok(2)), None, "too early after a look in vain");
        assert_eq!(line.device_or(5 + 2 * retry, || Ok(3)), Some(&mut 3));
        assert_eq!(line.wake_ns(), None);
    }

    #[test]
    fn only_a_device_that_can_come_back_is_waited_for() {
        assert!(DeviceLine::<u8>::start(Err(GONE)).is_ok_and(|line| line.wake_ns() == Some(0)));
        assert!(DeviceLine::<u8>::start(Err(DeviceFailure { call: "open", errno: Errno::PERM })).is_err());
    }
}
