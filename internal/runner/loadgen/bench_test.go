package loadgen

import (
	"bytes"
	"fmt"
	"testing"
)

// oneEvent is an event as engines send it, in a chunk of its own.
func oneEvent(i int) []byte {
	data := fmt.Sprintf("data: {\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1795962519,\"model\":\"llama-3.1-8b-instruct\",\"choices\":[{\"index\":0,\"text\":\" w%d\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n", i%10)
	return fmt.Appendf(nil, "%x\r\n%s\r\n", len(data), data)
}

// BenchmarkFeed is the hot path: what a read costs beside the system call. One
// event a read, and 64.
func BenchmarkFeed(b *testing.B) {
	for _, events := range []int{1, 64} {
		b.Run(fmt.Sprintf("events=%d", events), func(b *testing.B) {
			var piece []byte
			for i := range events {
				piece = append(piece, oneEvent(i)...)
			}
			var a arena
			x := &exchange{}
			feed := func(p []byte) {
				if _, err := x.feed(&a, p, 1); err != nil {
					b.Fatal(err)
				}
			}
			feed([]byte(streamHead))
			b.SetBytes(int64(len(piece)))
			b.ReportAllocs()
			for b.Loop() {
				feed(piece)
				if x.size > 1<<20 {
					a.take(x)
					x.size = 0
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*events), "ns/event")
		})
	}
}

// BenchmarkDecode is what an event costs when the load is over.
func BenchmarkDecode(b *testing.B) {
	const events = 512
	var a arena
	x := &exchange{dispatch: 1, ending: endingComplete}
	body := bytes.NewBufferString(streamHead)
	for i := range events {
		body.Write(oneEvent(i))
	}
	fmt.Fprintf(body, "%x\r\n%s\r\n0\r\n\r\n", len(lastEvents(7, events)), lastEvents(7, events))
	if done, err := x.feed(&a, body.Bytes(), 1); err != nil || !done {
		b.Fatal(done, err)
	}
	var d decoder
	b.ReportAllocs()
	for b.Loop() {
		if row := d.row(x); len(row.EventTimes) != events {
			b.Fatal(row.Outcome, row.Detail)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*events), "ns/event")
}
