package web

import (
	"net/http"
	"strconv"
	"time"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/store"
)

// alarmLimits are the defaults: two nights, a working day, three nights, and the
// pre-flight checks' objective.
func (s *server) alarmLimits() store.AlarmLimits {
	return store.AlarmLimits{Since: s.Now().Add(-48 * time.Hour), Stuck: 8 * time.Hour, Stale: 72 * time.Hour, PassRate: 0.95, Attempts: 20}
}

// listAlarms shows what nobody would notice by itself.
func (s *server) listAlarms(r *http.Request, _ auth.Identity) (any, error) {
	limits, q := s.alarmLimits(), r.URL.Query()
	if text := q.Get("since"); text != "" {
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, invalid("since %q is not a time", clipped(text))
		}
		limits.Since = t
	}
	for name, into := range map[string]*time.Duration{"stuck_s": &limits.Stuck, "stale_s": &limits.Stale} {
		if text := q.Get(name); text != "" {
			seconds, err := strconv.ParseFloat(text, 64)
			if err != nil || !(seconds > 0 && seconds < 1e9) {
				return nil, invalid("%s %q is no number of seconds above 0", name, clipped(text))
			}
			*into = time.Duration(seconds * float64(time.Second))
		}
	}
	if text := q.Get("pass_rate"); text != "" {
		rate, err := strconv.ParseFloat(text, 64)
		if err != nil || !(rate > 0 && rate <= 1) {
			return nil, invalid("pass_rate %q is not above 0 and at most 1", clipped(text))
		}
		limits.PassRate = rate
	}
	list, err := s.Store.Alarms(r.Context(), limits)
	if err != nil {
		return nil, err
	}
	out := make([]api.Alarm, len(list))
	for i, a := range list {
		out[i] = api.Alarm(a)
	}
	return out, nil
}

// alarmKinds are those that the metrics count, so that a kind without an alarm is 0
// and not missing.
func alarmKinds() []string {
	return []string{
		store.AlarmIncomplete, store.AlarmStuck, store.AlarmMissed, store.AlarmPreflight, store.AlarmStale, store.AlarmNight, store.AlarmDrift,
	}
}
