package loadgen

import (
	"fmt"

	"sbench/internal/result"
)

// outcome puts an exchange into its one class, with the reason in one line.
func (d *decoder) outcome(x *exchange, a *answer, r *result.Request) (result.Outcome, string) {
	if o, detail, ok := unanswered(x); ok {
		return o, detail
	}
	switch s := x.reply.status; {
	case s == 429:
		return result.OutcomeHTTP429, d.httpDetail(x)
	case s >= 500:
		return result.OutcomeHTTP5xx, d.httpDetail(x)
	case s >= 400:
		return result.OutcomeHTTP4xx, d.httpDetail(x)
	case s != 200 && s != 0:
		return result.OutcomeBadPayload, "unexpected " + d.httpDetail(x)
	}
	switch {
	case a.failed:
		return result.OutcomeStreamError, "the server reported: " + orUnnamed(a.failure)
	case x.ending == endingMalformed:
		return result.OutcomeBadPayload, x.why
	case a.malformed != "":
		return result.OutcomeBadPayload, a.malformed
	case a.finish == "abort" || a.finish == "error":
		return result.OutcomeStreamError, "the server ended the answer with finish_reason " + a.finish
	}
	if a.doneAt == 0 && !(a.whole && x.ending == endingComplete) {
		if o, detail, ok := unfinished(x, a); ok {
			return o, detail
		}
	}
	if len(a.events) == 0 && a.wholeAt == 0 {
		return result.OutcomeNoOutput, "the answer has no text"
	}
	if d.request.IgnoreEOS && r.OutputTokens != nil && *r.OutputTokens != r.OutputPlanned {
		return result.OutcomeLengthMismatch, fmt.Sprintf("%d output tokens instead of %d", *r.OutputTokens, r.OutputPlanned)
	}
	return result.OutcomeOK, ""
}

func orUnnamed(message string) string {
	if message == "" {
		return "an error without a message"
	}
	return message
}

// unanswered classifies what never got an answer's beginning.
func unanswered(x *exchange) (result.Outcome, string, bool) {
	switch x.ending {
	case endingNotSent:
		return result.OutcomeNotSent, "the client could not send it before the end", true
	case endingCancelled:
		return result.OutcomeCancelledByPlan, x.why, true
	case endingConnect:
		return result.OutcomeConnectError, x.why, true
	case endingLimit:
		return result.OutcomeClientLimit, x.why, true
	case endingTimeoutConnect:
		return result.OutcomeTimeoutConnect, "no connection within the limit", true
	case endingNone, endingComplete, endingEOF, endingReset, endingTimeoutFirst, endingTimeoutTotal, endingCutOff, endingMalformed:
	}
	if x.reply.status != 0 {
		return "", "", false
	}
	switch x.ending {
	case endingEOF, endingReset:
		return result.OutcomeTruncatedStream, "no answer: " + x.why, true
	case endingMalformed:
		return result.OutcomeBadPayload, x.why, true
	case endingTimeoutFirst:
		return result.OutcomeTimeoutFirstToken, "no answer within the limit", true
	case endingTimeoutTotal:
		return result.OutcomeTimeoutTotal, "no answer within the limit", true
	case endingCutOff:
		return result.OutcomeCutOff, "no answer when the drain ended", true
	default:
	}
	return result.OutcomeTruncatedStream, "no answer", true
}

// unfinished classifies a 200 whose answer lacks [DONE]. A finish_reason and the
// server's own end are an end too.
func unfinished(x *exchange, a *answer) (result.Outcome, string, bool) {
	switch x.ending {
	case endingTimeoutFirst:
		return result.OutcomeTimeoutFirstToken, "no text within the limit", true
	case endingTimeoutTotal:
		return result.OutcomeTimeoutTotal, fmt.Sprintf("not ended within the limit, after %d events with text", len(a.events)), true
	case endingCutOff:
		return result.OutcomeCutOff, fmt.Sprintf("still running when the drain ended, after %d events with text", len(a.events)), true
	default:
	}
	if a.finish != "" {
		a.warnings = append(a.warnings, "no [DONE]")
		return "", "", false
	}
	if x.size == 0 && x.ending == endingComplete {
		return result.OutcomeNoOutput, "an empty body", true
	}
	why := x.why
	if why == "" {
		why = "neither [DONE] nor finish_reason"
	}
	return result.OutcomeTruncatedStream, fmt.Sprintf("the stream ended after %d events with text: %s", len(a.events), why), true
}

func (d *decoder) httpDetail(x *exchange) string {
	d.body = x.body(d.body[:0])
	if len(d.body) == 0 {
		return fmt.Sprintf("HTTP %d", x.reply.status)
	}
	return fmt.Sprintf("HTTP %d: %s", x.reply.status, excerpt(d.body))
}
