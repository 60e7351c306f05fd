// Package version says which build this is.
package version

import (
	"runtime"
	"runtime/debug"
)

// stamp is set by the linker (-X sbench/internal/version.stamp=…).
var stamp string

// String returns the version stamped into the binary, or the module's version
// of a `go install`, or "devel".
func String() string {
	if stamp != "" {
		return stamp
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// Long returns the version with the Go release and the platform.
func Long() string {
	return String() + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}
