//go:build cgo

package nvml

import (
	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// maxXids bounds how many errors of one turn are read: a device that falls off
// the bus may report them without end.
const maxXids = 1000

// listen asks the driver to report its errors (Xid). The function that it returns
// collects those that came since it was called last, and gives for every device
// its own; nil where the driver cannot be listened to for the device.
func (s *session) listen(devices []lib.Device) (collect func() func(device int) *[]int64, stop func()) {
	unknown := func() func(int) *[]int64 { return func(int) *[]int64 { return nil } }
	for _, symbol := range []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlDeviceGetUUID"} {
		if !s.has(symbol) {
			return unknown, func() {}
		}
	}
	if !s.has("nvmlEventSetWait_v2") && !s.has("nvmlEventSetWait") {
		return unknown, func() {}
	}
	set, code := s.lib.EventSetCreate()
	if code != lib.SUCCESS {
		return unknown, func() {}
	}
	// An event has a handle of its own: the UUID says whose it is.
	listened := map[string]int{}
	watched := map[int]bool{}
	for i, d := range devices {
		uuid := ask(s, d.GetUUID, "nvmlDeviceGetUUID")
		if uuid == nil || d.RegisterEvents(lib.EventTypeXidCriticalError, set) != lib.SUCCESS {
			continue
		}
		listened[*uuid], watched[i] = i, true
	}
	collect = func() func(int) *[]int64 {
		found := map[int][]int64{}
		for range maxXids {
			event, code := set.Wait(0)
			if code != lib.SUCCESS {
				break // ERROR_TIMEOUT: there is none
			}
			if event.EventType != lib.EventTypeXidCriticalError {
				continue
			}
			if uuid := ask(s, event.Device.GetUUID, "nvmlDeviceGetUUID"); uuid != nil {
				if i, ok := listened[*uuid]; ok {
					found[i] = append(found[i], int64(event.EventData))
				}
			}
		}
		return func(device int) *[]int64 {
			if !watched[device] {
				return nil
			}
			list := found[device]
			if list == nil {
				list = []int64{}
			}
			return &list
		}
	}
	return collect, func() { _ = set.Free() }
}
