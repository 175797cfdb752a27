"use strict";
// Why the job does not go on: the most probable culprit in a line, and the rest for who wants it.

const ASK_AGAIN_S = 10; // where somebody waits
const LONG_WAIT_S = 10; // shorter ones are everyday

class WhyView {
  constructor(ask) {
    this.ask = ask; // gives a promise of the answer
    this.askedAt = -Infinity;
    this.asking = false;
    byId("ask-why").addEventListener("click", () => this.renew());
  }

  // Ask once, and again while somebody waits for long.
  show(status, nowS) {
    const longest = Math.max(0, ...status.groups.flatMap((group) => group.ranks.map((rank) => (rank.wait ? rank.wait_since_s : 0))));
    const isDue = this.askedAt === -Infinity || longest >= LONG_WAIT_S || this.sawWait || status.silent.length > 0;
    this.sawWait = longest >= LONG_WAIT_S;
    if (isDue && nowS - this.askedAt >= ASK_AGAIN_S) this.renew(nowS);
    if (this.askedAt > -Infinity) setText(byId("why-age"), `asked ${duration(Math.max(0, Math.round(nowS - this.askedAt)))} ago`);
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
