package engine

import "testing"

// TestReadFailure_Memory: out of memory is recognised on the device and on the
// host, by what engines write and by what the kernel says, and is told from the
// rest, which is retried or not by other rules.
func TestReadFailure_Memory(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		log, how string
		want     Cause
	}{
		{"ValueError: Free memory on device (20.1/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB).", "exit status 1", CauseDeviceOOM},
		{"ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (3.04 GiB).", "exit status 1", CauseDeviceOOM},
		{"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "exit status 1", CauseDeviceOOM},
		{"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "exit status 1", CauseDeviceOOM},
		{"RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.", "exit status 1", CauseHostOOM},
		{"loading shards: 50%", "killed by signal 9 (killed), " + KilledForMemory + " a process of this step", CauseHostOOM},
		{"loading shards: 50%", "killed by signal 9 (killed)", CauseUnknown},
		{"torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, remote process exited or there was a network error", "exit status 1", CauseNetwork},
		{"torch.distributed.DistNetworkError: The client socket has failed to connect to any network address", "exit status 1", CauseNetwork},
	} {
		if got := ReadFailure(tt.log, tt.how); got.Cause != tt.want {
			t.Errorf("%q, %s: %s, want %s", tt.log, tt.how, got.Cause, tt.want)
		}
	}
}
