//go:build cgo

package nvml

import (
	"fmt"
	"slices"
	"strings"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// session asks one loaded library.
type session struct {
	lib lib.Interface
	// has reports whether the library has a symbol. Calling one that it lacks
	// would end the process.
	has     func(symbol string) bool
	reasons []string // what would not be said, and why; each once
}

// ask calls a function if the library has one of its symbols, and returns nil
// where it gives no value.
func ask[T any](s *session, call func() (T, lib.Return), symbols ...string) *T {
	if !slices.ContainsFunc(symbols, s.has) {
		s.note(symbols[0], "not in this driver")
		return nil
	}
	value, code := call()
	if code != lib.SUCCESS {
		s.note(symbols[0], meaning(code))
		return nil
	}
	return &value
}

func (s *session) note(symbol, why string) {
	line := strings.TrimPrefix(symbol, "nvml") + ": " + why
	if !slices.Contains(s.reasons, line) {
		s.reasons = append(s.reasons, line)
	}
}

// meaning is the text of a return code. It does not ask the library, which may
// lack the function for that too.
func meaning(code lib.Return) string {
	meanings := map[lib.Return]string{
		lib.ERROR_UNINITIALIZED:           "not initialized",
		lib.ERROR_INVALID_ARGUMENT:        "invalid argument",
		lib.ERROR_NOT_SUPPORTED:           "not supported",
		lib.ERROR_NO_PERMISSION:           "no permission",
		lib.ERROR_NOT_FOUND:               "not found",
		lib.ERROR_DRIVER_NOT_LOADED:       "the driver is not loaded",
		lib.ERROR_TIMEOUT:                 "timeout",
		lib.ERROR_LIBRARY_NOT_FOUND:       "libnvidia-ml.so.1 was not found",
		lib.ERROR_FUNCTION_NOT_FOUND:      "not in this driver",
		lib.ERROR_GPU_IS_LOST:             "the GPU is lost: it fell off the bus",
		lib.ERROR_RESET_REQUIRED:          "the GPU needs a reset",
		lib.ERROR_LIB_RM_VERSION_MISMATCH: "driver and library are of different versions",
		lib.ERROR_UNKNOWN:                 "unknown error of the driver",
	}
	if text, ok := meanings[code]; ok {
		return text
	}
	return fmt.Sprintf("NVML error %d", int(code))
}

// kind is the code of a fault in the helper's JSON.
func kind(code lib.Return) string {
	kinds := map[lib.Return]string{
		lib.ERROR_LIBRARY_NOT_FOUND:       "no_library",
		lib.ERROR_DRIVER_NOT_LOADED:       "no_driver",
		lib.ERROR_LIB_RM_VERSION_MISMATCH: "no_driver",
		lib.ERROR_NO_PERMISSION:           "no_permission",
		lib.ERROR_GPU_IS_LOST:             "gpu_lost",
		lib.ERROR_RESET_REQUIRED:          "gpu_lost",
	}
	if text, ok := kinds[code]; ok {
		return text
	}
	return "unknown"
}

// Fault is an answer that there is no data.
type Fault struct {
	Code string // no_library, no_driver, no_permission, gpu_lost, unknown
	Text string
}

func (f *Fault) Error() string { return f.Text }

func fault(what string, code lib.Return) *Fault {
	return &Fault{Code: kind(code), Text: what + ": " + meaning(code)}
}

// open loads and initializes the library.
func open() (*session, func(), error) {
	l := lib.New()
	// Init is safe to call: without the library it says so.
	if code := l.Init(); code != lib.SUCCESS {
		return nil, nil, fault("NVML", code)
	}
	s := &session{lib: l, has: func(symbol string) bool { return l.Extensions().LookupSymbol(symbol) == nil }}
	return s, func() {
		if s.has("nvmlShutdown") {
			_ = l.Shutdown()
		}
	}, nil
}

// devices returns the handle of every device. Where one cannot be had the others
// are no use: the node is not what it should be.
func (s *session) devices() ([]lib.Device, error) {
	if !slices.ContainsFunc([]string{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}, s.has) {
		return nil, &Fault{Code: "unknown", Text: "DeviceGetCount: not in this driver"}
	}
	n, code := s.lib.DeviceGetCount()
	if code != lib.SUCCESS {
		return nil, fault("DeviceGetCount", code)
	}
	devices := make([]lib.Device, n)
	for i := range n {
		if devices[i], code = s.lib.DeviceGetHandleByIndex(i); code != lib.SUCCESS {
			return nil, fault(fmt.Sprintf("gpu %d", i), code)
		}
	}
	return devices, nil
}
