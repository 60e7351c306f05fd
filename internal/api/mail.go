package api

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The events of a sweep that mail is sent for, in sbatch's words.
const (
	MailBegin         = "BEGIN"          // its first run has started
	MailEnd           = "END"            // it has ended, however
	MailFail          = "FAIL"           // it has ended incomplete
	MailRequeue       = "REQUEUE"        // it had ended, and goes on
	MailInvalidDepend = "INVALID_DEPEND" // its dependency can never be satisfied
)

// MailEvents lists the events.
func MailEvents() []string {
	return []string{MailBegin, MailEnd, MailFail, MailRequeue, MailInvalidDepend}
}

// ParseMailType reads the value of --mail-type: events separated by commas, ALL,
// or NONE. The result is in the order of MailEvents; nil for NONE and "".
func ParseMailType(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	wanted := map[string]bool{}
	for word := range strings.SplitSeq(text, ",") {
		word = strings.ToUpper(strings.TrimSpace(word))
		switch {
		case word == "NONE":
		case word == "ALL":
			for _, e := range MailEvents() {
				wanted[e] = true
			}
		case slices.Contains(MailEvents(), word):
			wanted[word] = true
		default:
			return nil, fmt.Errorf("%q is none of NONE, ALL, %s", word, strings.Join(MailEvents(), ", "))
		}
	}
	var list []string
	for _, e := range MailEvents() {
		if wanted[e] {
			list = append(list, e)
		}
	}
	return list, nil
}

// mailForm is narrower than the standard: nothing that a mail program, a header
// or a shell could take for something else.
var mailForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.+=-]*(@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)?$`)

// CheckMailUser refuses what is no user's name and no plain address.
func CheckMailUser(text string) error {
	if len(text) > 254 || !mailForm.MatchString(text) {
		return fmt.Errorf("%q is no user's name and no plain address, such as ada@example.org", text)
	}
	return nil
}

// Mail is a mail about a sweep.
type Mail struct {
	Event string    `json:"event"`
	To    string    `json:"to"`
	At    time.Time `json:"at"`
	// State is waiting, sending, sent, failed, or unknown: whether it was sent is
	// not known, and it is not sent again.
	State string `json:"state"`
	Tries int    `json:"tries"`
	Error string `json:"error"` // of the last try; "" for none
}
