"use strict";
// Why the job does not go on: the most probable culprit in a line, and the rest for who wants it.

const ASK_AGAIN_S = 10; // while somebody waits for long; what was asked by hand stays for as long
const LONG_WAIT_S = 5; // shorter waits are everyday: nobody is asked because of them

class WhyView {
  constructor(ask) {
    this.ask = ask; // gives a promise of the answer
    this.askedAt = -Infinity;
    this.asking = false;
    byId("ask-why").addEventListener("click", () => this.renew());
  }

  show(status, nowS) {
    const longest = longestWait(status);
    const isLong = status.silent.length > 0 || (longest !== null && longest.wait_since_s >= LONG_WAIT_S);
    const isOld = nowS - this.askedAt >= ASK_AGAIN_S;
    if (isLong && isOld) this.renew(nowS);
    if (!isLong && isOld && !this.asking) this.tell({ headline: calm(longest), culprits: [], text: "" });
    setText(byId("why-age"), isOld && !isLong ? "" : `asked ${duration(Math.max(0, Math.round(nowS - this.askedAt)))} ago`);
  }

  async renew(nowS = performance.now() / 1000) {
    if (this.asking) return;
    this.asking = true;
    this.askedAt = nowS;
    try {
      this.tell(await this.ask());
    } catch (error) {
      setText(byId("why-headline"), `It could not be found out: ${error.message}`);
    } finally {
      this.asking = false;
    }
  }

  tell(why) {
    const [first, ...others] = why.culprits;
    setText(byId("why-headline"), why.headline);
    setAttribute(byId("why"), "data-found", first ? "culprit" : "nothing");
    keepChildren(byId("why-others"), others.slice(0, 8), (each) => each.reason, (each) => make("li", "", each.reason));
    setText(byId("why-text"), why.text);
    byId("why-details").hidden = !first;
  }
}

// The rank that waits longest; null if none does.
function longestWait(status) {
  const waiting = status.groups.flatMap((group) => group.ranks).filter((rank) => rank.wait);
  return waiting.reduce((longest, rank) => (longest && longest.wait_since_s >= rank.wait_since_s ? longest : rank), null);
}

function calm(longest) {
  if (!longest) return "Nobody waits.";
  return `Nobody waits for long; ${longest.address} waits longest, ${duration(longest.wait_since_s)} in ${longest.wait}.`;
}
