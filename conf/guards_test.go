package conf

import (
	"fmt"
	"strings"
	"testing"
)

// TestGuards: keys of identity, disk and fencing, each with what is wrong in it and what would be right.
func TestGuards(t *testing.T) {
	address := "0x" + strings.Repeat("aB", 20)
	for _, tt := range []struct{ name, more, want string }{
		{"life", "CertLife=59", "CertLife=59s: at least 1m0s"},
		{"fence", "FenceProgram=/bin/true FenceTimeout=0", "FenceTimeout must be over 0"},
		{"fence by name", "FenceProgram=fence", "FenceProgram=fence: the path must be absolute"},
		{"hash", "StateHashInterval=100ms", "StateHashInterval=100ms: 0 (never) or at least 1s"},
		{"login", "LoginNodes=l1,l/2", `LoginNodes: "l/2" is no name`},
		{"login twice", "LoginNodes=l1,l2,l1", "LoginNodes: l1 is listed twice"},
		{"wallet", "Wallets=" + address + "=ann", ""},
		{"wallet of nobody", "Wallets=" + address, "0xADDRESS=user was expected"},
		{"short wallet", "Wallets=0xab=ann", "40 hexadecimal digits"},
		{"odd wallet", "Wallets=0x" + strings.Repeat("xy", 20) + "=ann", "40 hexadecimal digits"},
		{"root's wallet", "Wallets=" + address + "=root", "no wallet may stand for root"},
		{"wallet twice", "Wallets=" + address + "=ann," + strings.ToLower(address) + "=bob", "is listed twice"},
		{"port for users", "ControllerName=c2 UserPort=65536", "UserPort=65536 is not from 0 (closed) to 65535"},
		{"clash", "ControllerName=c2 UserPort=6817", "both listen at c2:6817"},
		{"closed ports do not clash", "ControllerName=c2\nControllerName=c3", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(write(t, "grid.conf", good+tt.more+"\n"))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// TestControllerCount: 1 to 7; an even number is told of, as a cluster has one while it grows.
func TestControllerCount(t *testing.T) {
	for n := range MaxControllers + 2 {
		var b strings.Builder
		fmt.Fprintln(&b, "ClusterName=x")
		for i := range n {
			fmt.Fprintf(&b, "ControllerName=c%d\n", i+1)
		}
		cfg, err := Load(write(t, "grid.conf", b.String()))
		if good := n >= 1 && n <= MaxControllers; (err == nil) != good {
			t.Errorf("%d controllers: %v", n, err)
			continue
		}
		if err == nil && (len(cfg.Warnings) == 1) != (n%2 == 0) {
			t.Errorf("%d controllers: warnings %v", n, cfg.Warnings)
		}
	}
	if _, err := Load(write(t, "grid.conf", "ClusterName=x\n")); err == nil || !strings.Contains(err.Error(), "no ControllerName line") {
		t.Error(err)
	}
}
