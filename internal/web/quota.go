package web

import (
	"fmt"
	"net/http"
	"slices"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/cost"
	"sbench/internal/store"
)

func periods() []string { return []string{"day", "week", "month", "quarter", "year"} }

// listQuotas shows what bounds the caller's work, and how much of it is gone; to
// operators all quotas.
func (s *server) listQuotas(r *http.Request, who auth.Identity) (any, error) {
	name := who.User
	if asked := r.URL.Query().Get("user"); asked != "" && asked != who.User {
		if !who.Operator {
			return nil, refused(nil, "%s is no operator: the quotas of %s are not shown", who.User, clipped(asked))
		}
		name = asked
	}
	list, err := s.Store.QuotaUsage(r.Context(), name)
	if err != nil {
		return nil, err
	}
	out := []api.Quota{}
	for _, u := range list {
		if !who.Operator && u.UserName != "" && u.UserName != store.EachUser && u.UserName != who.User {
			continue
		}
		out = append(out, quotaOf(u))
	}
	return out, nil
}

func quotaOf(u store.QuotaUse) api.Quota {
	q := api.Quota{
		ID: u.ID, Site: u.Site, Account: u.Account, User: u.UserName, Period: u.Period, GPUHours: u.GPUHours, Comment: u.Comment, SetBy: u.SetBy, SetAt: u.SetAt,
	}
	if !u.PeriodStart.IsZero() {
		used, reserved := u.UsedHours, u.ReservedHours
		q.PeriodStart, q.PeriodEnd, q.UsedGPUHours, q.ReservedGPUHours = &u.PeriodStart, &u.PeriodEnd, &used, &reserved
	}
	return q
}

func (s *server) setQuota(r *http.Request, who auth.Identity) (any, error) {
	var req api.QuotaRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if !s.administers(who, req.Site) {
		return nil, refused(nil, "%s is no admin: only admins set quotas", who.User)
	}
	switch {
	case !slices.Contains(periods(), req.Period):
		return nil, invalid("period %q is none of %v", clipped(req.Period), periods())
	case req.GPUHours != nil && !(*req.GPUHours >= 0 && *req.GPUHours < 1e12):
		return nil, invalid("gpu_hours is not between 0 and 1e12")
	case req.Account != "" && !nameForm.MatchString(req.Account):
		return nil, invalid("account %q is not a name", clipped(req.Account))
	case req.User != "" && req.User != store.EachUser && !nameForm.MatchString(req.User):
		return nil, invalid("user %q is not a name", clipped(req.User))
	}
	if err := checkReason(req.Comment); err != nil {
		return nil, err
	}
	if err := s.checkHardware(req.Site, ""); err != nil {
		return nil, err
	}
	q := store.Quota{
		Site: req.Site, Account: req.Account, UserName: req.User, Period: req.Period, GPUHours: req.GPUHours, Comment: req.Comment, SetBy: who.User,
	}
	if err := s.Store.SetQuota(r.Context(), &q); err != nil {
		return nil, err
	}
	note(r.Context(), "quota", req)
	return quotaOf(store.QuotaUse{Quota: q}), nil
}

// overQuota turns the store's refusal into an answer.
func overQuota(e *store.QuotaError) *api.Problem {
	return &api.Problem{
		Code: api.CodeRefused, Message: e.Error(),
		Hint: fmt.Sprintf("the period ends at %s; sbench quota list shows all quotas", e.PeriodEnd.UTC().Format("2006-01-02T15:04:05Z")),
	}
}

// priced puts the forecast's cost into the plan, and refuses one above --max-cost.
func (s *server) priced(a *admission, book *cost.Book) error {
	total, known := cost.Micros(0), true
	for i := range a.plan.Detail {
		d := &a.plan.Detail[i]
		seconds := float64(d.HeldGPUs) * d.RunSeconds * float64(d.Repeats)
		// Every setting has a row, or the sweep was refused before.
		amount, ok := book.Forecast(a.site.Name, a.sweep.Settings[i].Setting.Hardware.GPU, seconds, s.Now())
		total, known = total+amount, known && ok
	}
	a.plan.Currency = currency
	if known {
		usd := total.USD()
		a.plan.Cost = &usd
	}
	switch most := a.options.MaxCost; {
	case most == nil:
		return nil
	case !known:
		return refused(nil, "--max-cost %g: site %s has no rate for all of this: sbench rate list shows the rates", *most, a.site.Name)
	case *a.plan.Cost > *most:
		return refused(nil, "the forecast of %.2f %s is %.2f above --max-cost %g", *a.plan.Cost, currency, *a.plan.Cost-*most, *most)
	}
	return nil
}
