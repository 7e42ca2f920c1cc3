package conf

import (
	"slices"
	"strings"
	"time"
)

// MaxControllers bounds the ControllerName lines: more voters make each write slower and nothing safer.
const MaxControllers = 7

// leastCertLife is the shortest life of certificates: shorter ones would end before clocks agree.
const leastCertLife = time.Minute

// controllerCount checks how many replicas there are. An even number is what a file has while a cluster
// grows or shrinks; it survives no more failures than one less.
func (b *builder) controllerCount() {
	n, src := len(b.cfg.Controllers), b.cfg.Source
	switch {
	case n == 0:
		b.r.problem(src, 0, "no ControllerName line says where the controllers are")
	case n > MaxControllers:
		b.r.problem(src, 0, "%d controllers are named; at most %d can be", n, MaxControllers)
	case n%2 == 0:
		last := b.ctlAt[b.cfg.Controllers[n-1].Name]
		last.Text = "an even number of controllers survives no more failures than one less: 1, 3 or 5 is right for long"
		b.cfg.Warnings = append(b.cfg.Warnings, last)
	}
}

// guards checks the keys of identity, disk and fencing.
func (b *builder) guards() {
	c, src := b.cfg, b.cfg.Source
	if c.CertLife < leastCertLife {
		b.r.problem(src, 0, "CertLife=%v: at least %v was expected", c.CertLife, leastCertLife)
	}
	if c.FenceProgram != "" && c.FenceTimeout <= 0 {
		b.r.problem(src, 0, "FenceTimeout must be over 0 when there is a FenceProgram")
	}
	if c.StateHashInterval > 0 && c.StateHashInterval < time.Second {
		b.r.problem(src, 0, "StateHashInterval=%v: 0 (never) or at least 1s was expected", c.StateHashInterval)
	}
	if c.StateReserve < 0 {
		b.r.problem(src, 0, "StateReserve must not be negative")
	}
	for i, name := range c.LoginNodes {
		if !goodName(name) {
			b.r.problem(src, 0, "LoginNodes: %q is no name of a certificate: letters, digits, '.', '-' and '_', and at most 40 of them", clip(name))
		}
		if slices.Contains(c.LoginNodes[:i], name) {
			b.r.problem(src, 0, "LoginNodes: %s is listed twice", clip(name))
		}
	}
	b.wallets()
}

// wallets checks what stands for whom. The capitals of an address are its check sum, which the reader of
// signatures looks at; here an address is an address in any case.
func (b *builder) wallets() {
	seen := map[string]bool{}
	for _, item := range b.cfg.Wallets {
		address, user, ok := strings.Cut(item, "=")
		address = strings.ToLower(address)
		switch {
		case !ok || !isAddress(address) || !goodName(user):
			b.r.problem(b.cfg.Source, 0, "Wallets: %q: 0xADDRESS=user was expected, an address having 40 hexadecimal digits", clip(item))
		case user == "root":
			b.r.problem(b.cfg.Source, 0, "Wallets: %s: no wallet may stand for root", clip(item))
		case seen[address]:
			b.r.problem(b.cfg.Source, 0, "Wallets: %s is listed twice", address)
		}
		seen[address] = true
	}
}

func isAddress(lower string) bool {
	digits, ok := strings.CutPrefix(lower, "0x")
	return ok && len(digits) == 40 && strings.Trim(digits, "0123456789abcdef") == ""
}
