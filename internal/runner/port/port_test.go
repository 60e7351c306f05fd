package port

import "testing"

// TestFree: while an engine loads, nobody gets its port by chance.
func TestFree(t *testing.T) {
	t.Parallel()
	low, high, ok := Ephemeral()
	if !ok || low <= 0 || high < low {
		t.Fatalf("the kernel's own ports are %d to %d", low, high)
	}
	seen := map[int]bool{}
	for range 20 {
		port, err := Free("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		if low <= port && port <= high && high-low < 1<<15 {
			t.Errorf("port %d is one that the kernel gives away (%d to %d)", port, low, high)
		}
		if _, err := listen("127.0.0.1", port); err != nil {
			t.Errorf("port %d is not free: %v", port, err)
		}
		seen[port] = true
	}
	if len(seen) < 10 {
		t.Errorf("20 engines would share %d ports", len(seen))
	}
}
