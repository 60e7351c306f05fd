// Package nvml talks to NVIDIA's management library for sbench-gpu; it is the
// only package with cgo. It promises that what a driver or device does not
// support is null and never zero, and that a symbol which an old driver lacks is
// never called. It cannot promise to return: a driver may hang, which is why it
// runs in a process of its own under the runner's deadline.
package nvml
