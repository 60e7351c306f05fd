// Command stats simulates what sbench's statistics promise, with sbench's own
// code, and prints one line per figure: name, value, target. It promises the same
// figures for the same seed; it exits 1 where a target is missed.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

func main() {
	missed := 0
	for _, f := range figures(20000, 6000, 20, print) {
		if !f.met() {
			missed++
		}
	}
	if missed > 0 {
		fmt.Fprintf(os.Stderr, "%d targets missed\n", missed)
		os.Exit(1)
	}
}

func print(f figure) {
	fmt.Printf("%s %s %s\n", f.name, strconv.FormatFloat(f.value, 'f', 2, 64), f.target)
}

// figure is one line.
type figure struct {
	name   string
	value  float64
	target string // >=94, <1; >=0 for what is there for contrast
}

func (f figure) met() bool {
	for _, op := range []string{">=", "<=", "<"} {
		if text, ok := strings.CutPrefix(f.target, op); ok {
			limit, err := strconv.ParseFloat(text, 64)
			switch {
			case err != nil:
				return false
			case op == ">=":
				return f.value >= limit
			case op == "<=":
				return f.value <= limit
			default:
				return f.value < limit
			}
		}
	}
	return false
}

// figures runs all simulations: reps nights of one setting per world, and a fleet
// of so many series for so many quiet nights. show is called with each figure as
// it comes.
func figures(reps, series, nights int, show func(figure)) []figure {
	var all []figure
	add := func(name string, value float64, target string) {
		f := figure{name, value, target}
		all = append(all, f)
		show(f)
	}
	for i, w := range worlds() {
		for _, most := range []int{10, 20} {
			rule, five, ten := adaptive(w, most, reps, uint64(100*i+most))
			name := fmt.Sprintf("adaptive_max%d_%s", most, w.name)
			add(name+"_coverage_percent", rule.covered, fmt.Sprintf(">=%g", w.target))
			add(name+"_runs", rule.runs, fmt.Sprintf("<=%d", most))
			if strings.HasPrefix(w.name, "bimodal") {
				add(name+"_flagged_percent", rule.flagged, ">=0")
			}
			if most == 10 {
				add("fixed5_"+w.name+"_coverage_percent", five.covered, ">=0")
				add("fixed5_"+w.name+"_runs", five.runs, ">=0")
				add("fixed10_"+w.name+"_coverage_percent", ten.covered, ">=0")
				add("fixed10_"+w.name+"_runs", ten.runs, ">=0")
			}
		}
	}
	for i, cv := range []float64{0.005, 0.01, 0.02, 0.05} {
		n := nights
		if cv != 0.02 {
			n = max(2, nights/4)
		}
		alarms, fixed, extra := quiet(uint64(1000+i), series, 60, n, cv, false)
		name := fmt.Sprintf("cv%g", 100*cv)
		add("nightly_false_alarms_"+name+"_per_night", alarms, "<1")
		add("nightly_extra_runs_"+name+"_per_night", extra, ">=0")
		add("fixed5percent_false_alarms_"+name+"_per_night", fixed, ">=0")
	}
	alarms, _, _ := quiet(1100, series, 60, max(2, nights/4), 0.02, true)
	add("nightly_false_alarms_t5_cv2_per_night", alarms, "<1")
	changed := max(20, series/20)
	same, within, fixed := stepped(2000, series, changed, 60, 7, 0.02, 0.05, 1)
	add("nightly_step5_cv2_found_same_night_percent", same, ">=0")
	add("nightly_step5_cv2_found_7_nights_percent", within, ">=95")
	add("fixed5percent_step5_cv2_found_same_night_percent", fixed, ">=0")
	same, within, _ = stepped(2001, series, changed, 60, 7, 0.01, 0.05, 1)
	add("nightly_step5_cv1_found_same_night_percent", same, ">=0")
	add("nightly_step5_cv1_found_7_nights_percent", within, ">=95")
	_, within, _ = stepped(2002, series, changed, 60, 7, 0.02, 0.05, 1.0/7)
	add("nightly_step5_cv2_run_weekly_found_7_nights_percent", within, ">=0")
	// What reuse skips runs as a canary (2 % a night) or when it is 30 nights old.
	_, within, _ = stepped(2004, series, changed, 60, 7, 0.02, 0.05, 0.02+1.0/30)
	add("nightly_step5_cv2_skipped_found_7_nights_percent", within, ">=0")
	_, within, _ = stepped(2003, series, changed, 60, 7, 0.05, 0.05, 1)
	add("nightly_step5_cv5_found_7_nights_percent", within, ">=0")
	return all
}
