//go:build load

package load_test

import (
	"fmt"
	"testing"

	"sbench/internal/setting"
)

// How late requests leave, beside one thread that only sleeps and writes.
func TestSchedule_Lateness(t *testing.T) {
	measuring(t)
	for _, rate := range []float64{200, 1000, 5000} {
		address := serve(t, serverConfig{Plain: true})
		c := clientConfig{
			Address: address, Rate: rate, Process: setting.ProcessPoisson, Seconds: 10, Warmup: 1, Output: 1, Preopen: 256,
		}
		bare := do[clientResult](t, "sender", c)
		ours := do[clientResult](t, "ours", c)
		if ours.Failed > 0 {
			t.Fatalf("%d failures: %s", ours.Failed, ours.Detail)
		}
		b, a := quantile(bare.Lateness, 0.99), quantile(ours.Lateness, 0.99)
		figure(t, fmt.Sprintf("send_lateness_p50_us_at_%g", rate), quantile(ours.Lateness, 0.5)*1e6, "-")
		figure(t, fmt.Sprintf("send_lateness_p99_bare_us_at_%g", rate), b*1e6, "-")
		figure(t, fmt.Sprintf("send_lateness_p99_us_at_%g", rate), a*1e6, "-")
		figure(t, fmt.Sprintf("send_lateness_p99_ratio_at_%g", rate), a/b, "<=1.3")
	}
}
