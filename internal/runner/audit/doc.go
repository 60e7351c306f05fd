// Package audit judges whether a measurement may be believed. It promises that
// every check has a value, a threshold, a verdict and a sentence that a person
// understands, and that a mandatory check that could not be made is a failure;
// it refuses to excuse the client: an attempt whose client was late is invalid,
// while an engine that does not keep up is a finding.
package audit
